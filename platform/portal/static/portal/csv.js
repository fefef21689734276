// Every table has a link to its CSV, which the server makes with all rows (portal/formats/table_csv.py). Tables that have a
// link of their own, to a file with more columns, keep that one.
"use strict";

(function () {
  const files = "a[href*='.csv'], a[href*='format=csv']";
  const first = document.querySelector("main .scroll > table"); // a file in the page's heading is of this one

  function offer(table) {
    const scroller = table.closest(".scroll");
    const block = scroller.closest("section, .panel") ?? document.querySelector("main");
    const name = table.dataset.testid;
    if (!name || !table.tBodies[0]?.rows.length || block.querySelector(files)) return;
    if (table === first && document.querySelector(`.top .side :is(${files})`)) return;
    const query = new URLSearchParams(location.search);
    for (const each of ["after", "new"]) query.delete(each); // all rows; and nothing that is shown once
    query.set("csv", name);
    const link = document.createElement("a");
    link.className = "link csv";
    link.href = `?${query}`;
    link.textContent = "CSV";
    const title = (block.querySelector("h2") ?? document.querySelector("h1")).textContent.trim();
    link.setAttribute("aria-label", `CSV: ${title}`);
    const beside = block.querySelectorAll(".scroll > table").length === 1 && block.querySelector(":scope > header");
    if (beside) beside.append(link);
    else scroller.after(link);
  }

  document.querySelectorAll("main .scroll > table").forEach(offer);
})();
