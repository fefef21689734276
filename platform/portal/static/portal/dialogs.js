// Ask before something is changed: a link with [data-ask] opens its page as a dialog; without this it is a page.
// The command beside the question, if there is one, follows what is filled in.
"use strict";

(function () {
  const dialog = document.getElementById("verb");

  function follow(form) {
    const command = form.querySelector("[data-pattern]");
    if (!command) return;
    const values = new FormData(form);
    command.textContent = command.dataset.pattern.replace(/\{(\w+)\}/g, (_, name) => values.get(name) || `{${name}}`);
  }

  async function ask(link) {
    try {
      const answer = await fetch(link.href, { headers: { "HX-Request": "true" }, redirect: "error" });
      if (!answer.ok) throw new Error(answer.statusText);
      dialog.innerHTML = await answer.text();
      dialog.showModal();
    } catch {
      location.href = link.href;
    }
  }

  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-ask]");
    if (link && dialog && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
      event.preventDefault();
      ask(link);
    }
    if (dialog?.open && (event.target.closest("[data-close]") || event.target === dialog)) {
      event.preventDefault();
      dialog.close();
    }
  });

  document.addEventListener("input", (event) => {
    const form = event.target.closest("form.question");
    if (form) follow(form);
  });
})();
