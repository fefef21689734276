// Behaviour of every page: times in the reader's time zone, copy buttons, linked rows, forms and their confirmations.
"use strict";

(function () {
  const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
  const day = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });
  const dayAndYear = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", year: "numeric" });

  function local(moment) {
    const now = new Date();
    const time = clock.format(moment);
    if (moment.toDateString() === now.toDateString()) return time;
    const date = moment.getFullYear() === now.getFullYear() ? day.format(moment) : dayAndYear.format(moment);
    return `${date}, ${time}`;
  }

  // The server writes UTC; readers see their own time zone, and UTC on hover.
  function localTimes(root) {
    for (const element of root.querySelectorAll("time[datetime]:not([title])")) {
      const moment = new Date(element.dateTime);
      if (Number.isNaN(moment.valueOf())) continue;
      element.title = `${moment.toISOString().replace("T", " ").replace(/\.\d+Z$/, "")} UTC`;
      element.textContent = local(moment);
    }
  }

  async function copy(button) {
    const source = document.getElementById(button.dataset.copy);
    if (!source) return;
    const before = button.textContent;
    try {
      await navigator.clipboard.writeText(source.textContent.trim());
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(source);
      button.textContent = "Selected: press Ctrl C";
    }
    setTimeout(() => { button.textContent = before; }, 2000);
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-copy]");
    if (button) copy(button);
    const row = event.target.closest("tr[data-href]");
    if (row && !event.target.closest("a, button, summary, input") && !getSelection().toString()) {
      location.href = row.dataset.href;
    }
  });

  // A form of choices: only the chosen option's field is enabled; the others are cleared.
  function enableChosenField(form) {
    const chosen = form.querySelector("input[type=radio]:checked")?.value;
    for (const field of form.querySelectorAll("[data-of]")) {
      field.disabled = field.dataset.of !== chosen;
      field.required = !field.disabled;
      if (field.disabled) field.value = "";
    }
  }

  // The question to confirm before a form is sent: the button's, or the chosen option's with its field's value for {}.
  function confirmation(form, button) {
    if (button?.dataset.confirm) return button.dataset.confirm;
    const text = form.querySelector("input[type=radio]:checked")?.dataset.confirm;
    const field = form.querySelector("[data-of]:enabled");
    return text?.replace("{}", () => field?.selectedOptions?.[0].text ?? field?.value ?? "");
  }

  document.addEventListener("change", (event) => {
    if (event.target.closest("form[data-send-on-change]")) event.target.form.requestSubmit();
    const choices = event.target.closest("form[data-choices]");
    if (choices) enableChosenField(choices);
  });

  document.addEventListener("submit", (event) => {
    const text = confirmation(event.target, event.submitter);
    if (text && !window.confirm(text)) event.preventDefault();
  });

  document.addEventListener("htmx:afterSettle", (event) => localTimes(event.target));
  document.addEventListener("htmx:oobAfterSwap", (event) => localTimes(event.detail.elt ?? event.target));
  localTimes(document);
  document.querySelectorAll("form[data-choices]").forEach(enableChosenField);
})();
