// Keep [data-live] up to date: the server pushes changed fragments over one WebSocket and htmx swaps them in.
// Without a WebSocket a page that names an address to poll does so every few seconds. A hidden page does neither.
"use strict";

(function () {
  const root = document.querySelector("[data-live]");
  if (!root) return;
  const indicator = document.getElementById("live");
  const POLL_MS = 3000;
  const MAX_RETRY_MS = 30000;
  const LABELS = {
    live: say("Live"),
    polling: say("Updating every 3 s"),
    lost: say("Not live"),
    paused: say("Paused"),
    connecting: say("Connecting"),
  };
  let socket = null;
  let poll = null;
  let retry = null;
  let later = null;
  let wait = 1000;

  function show(state) {
    indicator.dataset.state = state;
    indicator.textContent = LABELS[state];
  }

  // Open details stay open when their fragment is swapped. What is being read off a chart stays until the pointer leaves.
  function apply(html) {
    clearTimeout(later);
    if (root.querySelector(".chart:hover")) {
      later = setTimeout(apply, 500, html);
      return;
    }
    const open = new Set([...root.querySelectorAll("details[open][id]")].map((element) => element.id));
    htmx.swap(document.body, html, { swapStyle: "none" });
    for (const id of open) document.getElementById(id)?.setAttribute("open", "");
    document.dispatchEvent(new Event("hearth:swapped"));
  }

  async function pollOnce() {
    try {
      const response = await fetch(root.dataset.poll, { headers: { "HX-Request": "true" }, redirect: "error" });
      if (response.ok) apply(await response.text());
    } catch {
      indicator.textContent = say("No connection, trying again");
    }
  }

  function startPolling() {
    if (poll) return;
    if (!root.dataset.poll) {
      show("lost");
      return;
    }
    show("polling");
    pollOnce();
    poll = setInterval(pollOnce, POLL_MS);
  }

  function stopPolling() {
    clearInterval(poll);
    poll = null;
  }

  function connect() {
    clearTimeout(retry);
    if (socket || document.hidden) return;
    const address = new URL(root.dataset.live, location.href);
    if (root.dataset.drawn) address.searchParams.set("drawn", root.dataset.drawn);
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
      wait = Math.min(wait * 2, MAX_RETRY_MS);
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
