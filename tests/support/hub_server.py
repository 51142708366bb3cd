"""A Hub on this machine: a real HTTP server that answers as huggingface.co does, and counts what it sends."""

import base64
import hashlib
import json
import re
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """Models by name, each a dict of file names and contents.

    `sent` counts how often each byte of a file was sent, as ``sent[model, name][position]``.
    """

    def __init__(self):
        self.models, self.gated, self.sent = {}, set(), {}
        self.private, self.token = set(), None
        self.ranges, self.faults = True, {}
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def do_GET(self):
                hub.answer(self)

            def do_POST(self):
                hub.take(self, self.rfile.read(int(self.headers.get("Content-Length", 0))))

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def answer(self, request):
        """What the paths of the Hub give."""
        path = request.path.split("?")[0]
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            return self.info(request, *found.groups())
        if found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            return self.redirected(request, *found.groups())
        if found := re.fullmatch(r"/storage/([^/]+/[^/]+)/(.+)", path):
            return self.stored(request, *found.groups())
        return reply(request, 404)

    def take(self, request, content):
        """What is posted to make a repository and a commit, small files in the commit itself."""
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            return reply(request, 403, headers={"X-Error-Message": "a token that may write is needed"})
        if request.path == "/api/repos/create":
            asked = json.loads(content)
            model = f"{asked['organization']}/{asked['name']}"
            self.models.setdefault(model, {})
            self.private |= {model} if asked.get("visibility") == "private" or asked.get("private") else set()
            return reply(request, 200, json.dumps({"url": f"{self.url}/{model}"}).encode())
        if request.path.endswith("/preupload/main"):
            names = [file["path"] for file in json.loads(content)["files"]]
            files = [{"path": name, "uploadMode": "regular", "shouldIgnore": False} for name in names]
            return reply(request, 200, json.dumps({"files": files}).encode())
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/main", request.path):
            for line in map(json.loads, content.splitlines()):
                if line["key"] == "file":
                    file = line["value"]
                    self.models[found[1]][file["path"]] = base64.b64decode(file["content"])
            done = {"success": True, "commitOid": COMMIT, "commitUrl": f"{self.url}/{found[1]}/commit/{COMMIT}"}
            return reply(request, 200, json.dumps(done).encode())
        return reply(request, 200 if request.path == "/api/validate-yaml" else 404, b"{}")

    def info(self, request, model, revision):
        if model in self.gated:
            return reply(request, 403, headers={"X-Error-Code": "GatedRepo"})
        if model not in self.models:
            return reply(request, 401, headers={"X-Error-Code": "RepoNotFound"})
        if revision not in (None, "main", "v1", COMMIT):
            return reply(request, 404, headers={"X-Error-Code": "RevisionNotFound"})
        files = [{"rfilename": name} for name in self.models[model]]
        return reply(request, 200, json.dumps({"id": model, "sha": COMMIT, "siblings": files}).encode())

    def redirected(self, request, model, commit, name):
        assert commit == COMMIT
        if code := self.faults.pop(name, None):
            return reply(request, code)
        tag = hashlib.sha256(self.models[model][name]).hexdigest()
        place = f"{self.url}/storage/{model}/{name}"
        return reply(request, 302, headers={"Location": place, "X-Linked-ETag": f'"{tag}"'})

    def stored(self, request, model, name):
        content = self.models[model][name]
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("Range", "")) if self.ranges else None
        first, last = map(int, asked.groups()) if asked else (0, len(content) - 1)
        last = min(last, len(content) - 1)
        self.sent.setdefault((model, name), Counter()).update(range(first, last + 1))
        headers = {"ETag": '"of the storage"'}
        headers |= {"Content-Range": f"bytes {first}-{last}/{len(content)}"} if asked else {}
        return reply(request, 206 if asked else 200, content[first : last + 1], headers)


def reply(request, code, content=b"", headers=None):
    """Send one answer."""
    request.send_response(code)
    for key, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
        request.send_header(key, value)
    request.end_headers()
    request.wfile.write(content)
