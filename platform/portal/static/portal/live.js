// Keep [data-live] up to date: the server pushes changed fragments over one WebSocket and htmx puts them in place.
// Without a WebSocket the page asks every few seconds. A page nobody sees does neither.
"use strict";

(function () {
  const root = document.querySelector("[data-live]");
  if (!root) return;
  const light = document.getElementById("live");
  const POLL_MS = 3000;
  const LONGEST_RETRY_MS = 30000;
  const WORDS = { live: "Live", polling: "Updating every 3 s", paused: "Paused", connecting: "Connecting" };
  let socket = null;
  let poll = null;
  let retry = null;
  let wait = 1000;

  function show(state) {
    light.dataset.state = state;
    light.textContent = WORDS[state];
  }

  // An opened list of events, or a selected row, outlives the swap of its fragment.
  function apply(html) {
    const open = new Set([...root.querySelectorAll("details[open][id]")].map((element) => element.id));
    htmx.swap(document.body, html, { swapStyle: "none" });
    for (const id of open) document.getElementById(id)?.setAttribute("open", "");
  }

  async function ask() {
    try {
      const answer = await fetch(root.dataset.poll, { headers: { "HX-Request": "true" }, redirect: "error" });
      if (answer.ok) apply(await answer.text());
    } catch {
      light.textContent = "No connection, trying again";
    }
  }

  function startPolling() {
    if (poll) return;
    show("polling");
    ask();
    poll = setInterval(ask, POLL_MS);
  }

  function stopPolling() {
    clearInterval(poll);
    poll = null;
  }

  function connect() {
    clearTimeout(retry);
    if (socket || document.hidden) return;
    const address = new URL(root.dataset.live, location.href);
    address.protocol = location.protocol === "https:" ? "wss:" : "ws:";
    socket = new WebSocket(address);
    socket.onopen = () => {
      wait = 1000;
      stopPolling();
      show("live");
    };
    socket.onmessage = (event) => apply(event.data);
    socket.onclose = () => {
      socket = null;
      if (document.hidden) return;
      startPolling();
      retry = setTimeout(connect, wait);
      wait = Math.min(wait * 2, LONGEST_RETRY_MS);
    };
  }

  function pause() {
    clearTimeout(retry);
    stopPolling();
    socket?.close();
    show("paused");
  }

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) pause();
    else {
      show("connecting");
      connect();
    }
  });
  addEventListener("pagehide", pause);
  show("connecting");
  connect();
})();
