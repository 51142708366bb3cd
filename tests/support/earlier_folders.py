"""Run folders as they were: after fewer rounds, or without the seals that earlier versions lacked."""

import json
import shutil


def back_to(rundir, rounds):
    """Make a finished run one that ended after so many rounds, and whose state is lost."""
    rundir.finished.unlink()
    shutil.rmtree(rundir.checkpoints, ignore_errors=True)
    for file in (rundir.records_file, rundir.timings_file):
        file.write_text("".join(file.read_text().splitlines(keepends=True)[:rounds]))


def unseal(rundir):
    """Write a folder as earlier versions did, which kept no state of a finished run."""
    rundir.finished.unlink(missing_ok=True)
    if rundir.records()[-1]["stopped"] is not None:
        shutil.rmtree(rundir.checkpoints, ignore_errors=True)
    for file in (rundir.records_file, rundir.timings_file):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        lines = [{k: v for k, v in line.items() if k not in ("seal", "masks")} for line in lines]
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
