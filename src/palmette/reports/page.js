(() => {
  const page = JSON.parse(document.getElementById("data").textContent);
  const views = new Map();
  const tables = page.studies.map((study) => Object.fromEntries(Object.entries(study.tables).map(
    ([name, { columns, rows }]) =>
      [name, rows.map((row) => Object.fromEntries(columns.map((column, i) => [column, row[i]])))])));

  // What the controls of a study say, by the names of the parameters of its charts.
  function chosen(section) {
    const all = [...section.querySelectorAll("[data-signal]")];
    const value = (name) => all.find((input) => input.dataset.signal === name).value;
    const shown = all.filter((input) => input.dataset.signal === "shown" && input.checked);
    return { shown: shown.map((input) => input.value), method: value("method"), round: Number(value("round")) };
  }

  function panel(figure) {
    return page.studies[figure.dataset.study].panels[figure.dataset.panel];
  }

  async function draw(figure) {
    const { specs, table } = panel(figure);
    const section = figure.closest("section");
    const spec = structuredClone(specs[section.querySelector("[data-x]").value] ?? specs[""]);
    const now = chosen(section);
    spec.params.forEach((param) => { param.value = now[param.name]; });
    spec.datasets = { [table]: tables[figure.dataset.study][table] };
    views.get(figure)?.finalize();
    const options = { renderer: "svg", config: page.config, actions: false, tooltip: { theme: "custom" } };
    views.set(figure, await vegaEmbed(figure.querySelector(".chart"), spec, options));
  }

  async function update(section) {
    const now = chosen(section);
    section.querySelectorAll("output").forEach((output) => { output.value = now.round; });
    for (const figure of section.querySelectorAll("figure")) {
      const { view, spec } = views.get(figure);
      spec.params.forEach(({ name }) => view.signal(name, now[name]));
      await view.runAsync();
    }
  }

  function download(figure) {
    let { columns, rows } = page.studies[figure.dataset.study].tables[panel(figure).table];
    if (panel(figure).table === "maps") { // a row for each p and q, in place of a list
      columns = [...columns.slice(0, -1), "p", "q", columns.at(-1)];
      rows = rows.flatMap((row) => row.at(-1).map((index, i) => [...row.slice(0, -1), page.grid.p[i], page.grid.q[i], index]));
    }
    const cell = (value) => value === null ? "" : /[",\n]/.test(value) ? `"${String(value).replaceAll('"', '""')}"` : value;
    const text = [columns, ...rows].map((row) => row.map(cell).join(",")).join("\n") + "\n";
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
    link.download = `${page.studies[figure.dataset.study].name}-${figure.dataset.panel}.csv`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }

  const figures = [...document.querySelectorAll("figure[data-panel]")];
  const ready = Promise.all(figures.map(draw)).then(() => { document.documentElement.dataset.drawn = "yes"; });
  document.addEventListener("input", async ({ target }) => {
    await ready;
    const section = target.closest("section");
    if (target.matches("[data-x]")) {
      await Promise.all(figures.filter((f) => section.contains(f) && panel(f).specs.round).map(draw));
    } else if (target.matches("[data-signal]")) await update(section);
  });
  document.addEventListener("click", ({ target }) => {
    if (target.matches("[data-download]")) download(target.closest("figure"));
  });
  window.palmette = { views, page };
})();
