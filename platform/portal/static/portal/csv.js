// Every table can be taken away as CSV: what it shows now, with times and amounts in full. Pages whose rows are more than
// fit have a link to all of them instead.
"use strict";

(function () {
  // What spreadsheets would run as a formula; the server's CSV guards the same (portal/formats/csv_export.py).
  const formula = /^[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]/;

  function text(cell) {
    const copy = cell.cloneNode(true);
    for (const each of copy.querySelectorAll("time[datetime]")) each.textContent = each.dateTime;
    for (const each of copy.querySelectorAll("select")) each.replaceWith(each.selectedOptions[0]?.textContent ?? "");
    for (const each of copy.querySelectorAll("button, input, textarea, dialog, svg")) each.remove();
    const found = copy.textContent.trim().replace(/\s+/g, " ");
    return formula.test(found) && Number.isNaN(Number(found)) ? `'${found}` : found;
  }

  function quoted(value) {
    return /[",\r\n]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value;
  }

  function csv(table) {
    const names = [...table.querySelectorAll("thead tr:last-child th")].map(text);
    const kept = names.map((name) => name !== "Actions");
    const rows = [...table.querySelectorAll("tbody tr")].map((row) => [...row.cells].map(text));
    return [names, ...rows].map((cells) => cells.filter((_, index) => kept[index] ?? true).map(quoted).join(",")).join("\r\n");
  }

  function save(table, name) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([csv(table), "\r\n"], { type: "text/csv;charset=utf-8" }));
    link.download = `${name.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "") || "table"}.csv`;
    link.click();
    URL.revokeObjectURL(link.href);
  }

  function offer(table) {
    const scroller = table.closest(".scroll");
    const block = scroller.closest("section, .panel") ?? document.querySelector("main");
    if (!table.tBodies[0]?.rows.length || block.querySelector("a[href*='.csv']")) return;
    const title = (block.querySelector("h2") ?? document.querySelector("h1")).textContent.trim();
    const button = document.createElement("button");
    button.type = "button";
    button.className = "plain csv";
    button.textContent = "CSV";
    button.setAttribute("aria-label", `CSV of ${title}`);
    button.addEventListener("click", () => save(table, title));
    const beside = block.querySelectorAll(".scroll > table").length === 1 && block.querySelector(":scope > header");
    if (beside) beside.append(button);
    else scroller.after(button);
  }

  document.querySelectorAll("main .scroll > table").forEach(offer);
})();
