// Open the page of a link with [data-ask] as a dialog; without this script it is a page of its own.
// A click beside a dialog does not close it: what was typed would be lost.
// The command shown in a dialog, if there is one, follows the form's fields.
"use strict";

(function () {
  const dialog = document.getElementById("dialog");

  // As fleet/actions.py does: what a shell would read otherwise stands in quotes.
  function quoted(value) {
    return /^[\w .:,=\/@%+-]*$/.test(value) ? value : `'${value.replaceAll("'", `'"'"'`)}'`;
  }

  function updateCommand(form) {
    const command = form.querySelector("[data-pattern]");
    if (!command) return;
    const values = new FormData(form);
    command.textContent = command.dataset.pattern.replace(/\{(\w+)\}/g, (_, name) => quoted(values.get(name) ?? "") || `{${name}}`);
  }

  async function open(link) {
    try {
      const response = await fetch(link.href, { headers: { "HX-Request": "true" }, redirect: "error" });
      if (!response.ok) throw new Error(response.statusText);
      dialog.innerHTML = await response.text();
      dialog.showModal();
    } catch {
      location.href = link.href;
    }
  }

  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-ask]");
    if (link && dialog && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
      event.preventDefault();
      open(link);
    }
    if (dialog?.open && event.target.closest("[data-close]")) {
      event.preventDefault();
      dialog.close();
    }
  });

  document.addEventListener("input", (event) => {
    const form = event.target.closest("form.dialog-form");
    if (form) updateCommand(form);
  });
})();
