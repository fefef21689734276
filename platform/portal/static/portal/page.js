// Behaviour of every page: times in the reader's time zone, copy buttons, linked rows, forms and their confirmations.
"use strict";

(function () {
  // Texts that scripts write, by their English; a page in English has no list (templatetags/script_words.py).
  const lists = [...document.querySelectorAll("script[data-words]")].map((each) => JSON.parse(each.textContent));
  const words = Object.assign({}, ...lists);
  // A name in braces in a text stands for one of the values.
  window.say = (text, values = {}) => (words[text] ?? text).replace(/\{(\w+)\}/g, (all, name) => values[name] ?? all);

  // The reader's time zone: that of the profile, or else of the browser.
  const timeZone = document.querySelector("[data-zone]")?.dataset.zone || Intl.DateTimeFormat().resolvedOptions().timeZone;
  const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false, timeZone });
  const day = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", timeZone });
  const dayAndYear = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", year: "numeric", timeZone });

  function local(moment, dated) {
    const now = new Date();
    const time = clock.format(moment);
    if (!dated && dayAndYear.format(moment) === dayAndYear.format(now)) return time;
    const date = moment.getFullYear() === now.getFullYear() ? day.format(moment) : dayAndYear.format(moment);
    return `${date}, ${time}`;
  }

  // The server writes UTC; readers see their own time zone, and UTC on hover.
  function localTimes(root) {
    for (const element of root.querySelectorAll("time[datetime]:not([title])")) {
      const moment = new Date(element.dateTime);
      if (Number.isNaN(moment.valueOf())) continue;
      element.title = `${moment.toISOString().replace("T", " ").replace(/\.\d+Z$/, "")} UTC`;
      element.textContent = local(moment, "dated" in element.dataset);
    }
  }

  async function copy(button) {
    const source = document.getElementById(button.dataset.copy);
    if (!source) return;
    const before = button.textContent;
    try {
      await navigator.clipboard.writeText(source.textContent.trim());
      button.textContent = say("Copied");
    } catch {
      getSelection().selectAllChildren(source);
      button.textContent = say("Selected: press Ctrl C");
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
    // A double click sends a form twice. A reader who comes back to the page may send it again.
    const form = event.target;
    if (event.defaultPrevented || form.method !== "post") return;
    if ("sent" in form.dataset) event.preventDefault();
    else form.dataset.sent = "";
  });

  window.addEventListener("pageshow", () => {
    for (const form of document.querySelectorAll("form[data-sent]")) delete form.dataset.sent;
  });

  // On phones a table of cards writes each column's name before its value, and rows of links begin at the current one.
  // A sum that spans columns is a line of its own.
  function labelCells(table) {
    const names = [...table.querySelectorAll("thead th")].map((each) => each.textContent.trim());
    for (const row of [...table.tBodies, table.tFoot].flatMap((part) => [...(part?.rows ?? [])])) {
      if (row.cells.length < names.length) {
        row.dataset.sum = "";
        continue;
      }
      [...row.cells].forEach((cell, index) => {
        cell.dataset.label = names[index];
        const value = document.createElement("span");
        value.className = "cell";
        value.append(...cell.childNodes);
        cell.append(value);
      });
    }
  }

  // A table that scrolls sideways can be scrolled with the keyboard only if it can have the focus.
  const reachable = new ResizeObserver((entries) => {
    for (const { target: scroller } of entries) {
      if (scroller.scrollWidth <= scroller.clientWidth) continue;
      scroller.tabIndex = 0;
      scroller.setAttribute("role", "group"); // a region would be one landmark more for each table
      scroller.setAttribute("aria-label", say("Table, scrolls sideways"));
    }
  });

  function showCurrent(link) {
    const row = link.parentElement;
    const beyond = link.getBoundingClientRect().right - row.getBoundingClientRect().right;
    if (beyond > 0) row.scrollLeft += beyond + 24;
    const below = link.getBoundingClientRect().bottom - row.getBoundingClientRect().bottom;
    if (below > 0) row.scrollTop += below + 24;
  }

  document.addEventListener("htmx:afterSettle", (event) => localTimes(event.target));
  document.addEventListener("htmx:oobAfterSwap", (event) => localTimes(event.detail.elt ?? event.target));
  // The server cuts periods and chart steps at the reader's midnight. A page that did not know the zone is loaded again.
  function reportTimeZone() {
    const cookie = `hearth_timezone=${timeZone}`;
    const known = () => document.cookie.split("; ").includes(cookie);
    if (!timeZone || known()) return;
    document.cookie = `${cookie}; path=/portal/; max-age=31536000; samesite=lax`;
    const shown = document.querySelector("[data-timezone]")?.dataset.timezone;
    if (shown && shown !== timeZone && known()) location.reload();
  }

  reportTimeZone();
  localTimes(document);
  document.querySelectorAll("table.cards").forEach(labelCells);
  document.querySelectorAll(".scroll").forEach((each) => reachable.observe(each));
  document.querySelectorAll(".tabs [aria-current], .rail nav [aria-current]").forEach(showCurrent);
  document.querySelectorAll("form[data-choices]").forEach(enableChosenField);
})();
