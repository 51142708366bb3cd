(() => {
  const page = JSON.parse(document.getElementById("data").textContent);
  const views = new Map();
  const tables = page.studies.map((study) => Object.fromEntries(Object.entries(study.tables).map(
    ([name, { columns, rows }]) =>
      [name, rows.map((row) => Object.fromEntries(columns.map((column, i) => [column, row[i]])))])));

  // Values of a study's controls, by the parameter names of its charts.
  function chosen(section) {
    const all = [...section.querySelectorAll("[data-signal]")];
    const value = (name) => all.find((input) => input.dataset.signal === name).value;
    const shown = Array(page.looks).fill(null); // the position is the number of the look
    boxes(section).filter((box) => box.checked).forEach((box) => { shown[box.dataset.look] = box.value; });
    return { shown, method: value("method"), round: Number(value("round")) };
  }

  function boxes(section) {
    return [...section.querySelectorAll("[data-signal=shown]")];
  }

  // A box that is switched on keeps its look if that is free, else it takes the first free one.
  function toggled(section, box) {
    const taken = boxes(section).filter((other) => other !== box && other.checked).map((other) => other.dataset.look);
    if (box.checked && (!box.dataset.look || taken.includes(box.dataset.look))) {
      box.dataset.look = [...Array(page.looks).keys()].find((look) => !taken.includes(String(look)));
      box.parentElement.querySelector("use").setAttribute("href", `#look-${box.dataset.look}`);
    }
    limit(section);
  }

  // Hide the boxes that are off, unless the reader asked for all.
  function fold(section) {
    const open = section.querySelector("[data-all]").ariaExpanded === "true";
    boxes(section).forEach((box) => { box.parentElement.hidden = !open && !box.checked; });
    boxes(section)[0].closest(".controls").classList.toggle("open", open);
  }

  // At most as many as there are looks, and at least one: an empty chart has no axes.
  function limit(section) {
    const count = boxes(section).filter((box) => box.checked).length;
    const full = count === page.looks;
    boxes(section).forEach((box) => { box.disabled = box.checked ? count === 1 : full; });
    section.querySelectorAll("[data-full]").forEach((note) => { note.hidden = !full; });
  }

  function panel(figure) {
    return page.studies[figure.dataset.study].panels[figure.dataset.panel];
  }

  async function draw(figure) {
    const { specs, table } = panel(figure);
    const section = figure.closest("section");
    const spec = structuredClone(specs[section.querySelector("[data-x]").value] ?? specs[""]);
    const now = chosen(section);
    spec.params.filter((param) => param.name in now).forEach((param) => { param.value = now[param.name]; });
    spec.description = figure.querySelector(".chart").ariaLabel; // Vega would replace it by a phrase of its own
    spec.datasets = { [table]: tables[figure.dataset.study][table] };
    views.get(figure)?.finalize();
    const options = { renderer: "svg", config: page.config, actions: false, tooltip: { theme: "custom" } };
    views.set(figure, await vegaEmbed(figure.querySelector(".chart"), spec, options));
  }

  async function update(section, name) {
    section.querySelectorAll("output").forEach((output) => { output.value = chosen(section).round; });
    for (const figure of section.querySelectorAll("figure")) {
      const { view, spec } = views.get(figure);
      if (spec.params.some((param) => param.name === name)) await view.signal(name, chosen(section)[name]).runAsync();
    }
  }

  function download(figure) {
    let { columns, rows } = page.studies[figure.dataset.study].tables[panel(figure).table];
    if (panel(figure).table === "maps") { // one row per p and q instead of a list
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

  // Numbers before words, by their value; the first click puts the largest on top.
  function sort(button) {
    const head = button.closest("th"), body = head.closest("table").tBodies[0];
    const cells = (row) => row.cells[head.cellIndex].textContent.trim();
    const down = head.ariaSort !== "descending";
    const order = (a, b) => {
      const [x, y] = [a, b].map((row) => parseFloat(cells(row).replaceAll(",", "")));
      if (isNaN(x) || isNaN(y)) return isNaN(x) - isNaN(y) || (down ? 1 : -1) * cells(a).localeCompare(cells(b));
      return down ? y - x : x - y;
    };
    [...head.parentElement.cells].forEach((other) => { other.ariaSort = null; });
    head.ariaSort = down ? "descending" : "ascending";
    body.append(...[...body.rows].sort(order));
  }

  document.querySelectorAll("[data-table] th").forEach((head) => {
    const button = document.createElement("button");
    button.textContent = head.textContent;
    button.ariaLabel = `${head.textContent}: sort ${head.closest("[data-table]").dataset.table}`;
    head.replaceChildren(button);
  });
  document.querySelectorAll("section").forEach(limit);
  const figures = [...document.querySelectorAll("figure[data-panel]")];
  let done = Promise.all(figures.map(draw)).then(() => { document.documentElement.dataset.drawn = "yes"; });
  document.addEventListener("input", ({ target }) => {
    const section = target.closest("section");
    if (target.matches("[data-signal=shown]")) toggled(section, target);
    // In sequence: drawing a chart twice at once would leave either result.
    done = done.then(() => target.matches("[data-x]")
      ? Promise.all(figures.filter((f) => section.contains(f) && panel(f).specs.round).map(draw))
      : update(section, target.dataset.signal ?? "shown"));
  });
  document.addEventListener("click", ({ target }) => {
    if (target.matches("[data-download]")) download(target.closest("figure"));
    if (target.matches("th button")) sort(target);
    if (target.matches("[data-all]")) {
      target.ariaExpanded = String(target.ariaExpanded !== "true");
      fold(target.closest("section"));
    }
  });
  window.palmette = { views };
})();
