// The playground: sends a conversation to the gateway from the browser and shows the answer as it arrives.
// What a model, an engine or the gateway says is only ever set as text, never as HTML. The key stays in a variable.

const page = document.getElementById("playground");
const { base, keyUrl, usageUrl, requestUrl, anyRequest } = page.dataset;
const maxBodyBytes = Number(page.dataset.maxBodyBytes);
const settings = document.getElementById("settings");
const composer = document.getElementById("composer");
const prompt = document.getElementById("prompt");
const turnList = document.getElementById("turns");

const IMAGE_TYPES = ["image/png", "image/jpeg", "image/webp", "image/gif"];
// Gateways learn a new secret of a known key within a second.
const LEARNED_MS = 4000;
const RENEWABLE = ["invalid_api_key", "key_expired"];
const RECORD_AFTER_MS = [400, 600, 1000, 2000, 3000, 5000, 8000];
const BYPASSES = {
  off: say("it is off for the tenant, the project or the key"),
  sampled: say("the answer is sampled; set temperature 0 or a seed, or turn the cache on"),
  header: say("it is turned off on this page"),
  scope: say("the key may not read it"),
  tools: say("a tool of these runs on a server"),
  media: say("an address may show another image next time"),
};
const ROUTES = {
  prefix: say("its prefix was warm there"),
  session: say("the conversation went there before"),
  load: say("it had to wait least there"),
  only: say("the only ready replica"),
};

// What is shown beside an answer, in this order.
const FACTS = ["cache", "route", "ttft", "server-ttft", "speed", "tpot", "prompt", "completion", "cost", "saved"];

// What is sent again later: each turn has its messages, its reply once there is one, and its body.
let turns = [];
let images = [];
let running = null;
let key = null;

// ---- elements

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") made.textContent = value;
    else if (name === "onclick") made.addEventListener("click", value);
    else if (value !== false && value !== undefined) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

function complain(text) {
  document.getElementById("problem").textContent = text;
}

// A text that grows, without a copy of all of it for each piece.
function growing(parent) {
  const text = document.createTextNode("");
  parent.append(text);
  return (piece) => text.appendData(piece);
}

const count = (number) => number.toLocaleString("en-US");
const milliseconds = (ms) => (ms >= 1000 ? `${(ms / 1000).toFixed(1)} s` : `${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms`);

function money(units, currency) {
  const digits = new Intl.NumberFormat("en", { style: "currency", currency }).resolvedOptions().maximumFractionDigits;
  const sign = { USD: "$", EUR: "€", GBP: "£" }[currency] ?? `${currency} `;
  const size = Math.abs(units);
  const cents = Number((size * 10 ** digits).toPrecision(12)); // 0.075 is no double: without this it would be 0.07
  const whole = cents % 1 === 0.5 ? Math.floor(cents) + (Math.floor(cents) % 2) : Math.round(cents); // as the pages do
  const shown = size === 0 || size >= 10 ** -digits ? (whole / 10 ** digits).toFixed(digits) : Number(size.toPrecision(3)).toFixed(12).replace(/0+$/, "");
  return `${units < 0 ? "−" : ""}${sign}${shown}`;
}

// ---- the request

function parsed(field, check) {
  const text = field.value.trim();
  const box = field.closest(".field");
  box.classList.remove("wrong");
  box.querySelector(".problem")?.remove();
  if (!text) return undefined;
  try {
    return check(JSON.parse(text));
  } catch (error) {
    box.classList.add("wrong");
    box.append(element("span", { class: "problem", text: error instanceof SyntaxError ? say("This is not JSON: {problem}", { problem: error.message }) : error.message }));
    for (let box = field.closest("details"); box; box = box.parentElement.closest("details")) box.open = true;
    field.focus();
    throw new Invalid(say("Nothing was sent. Correct what is marked."));
  }
}

class Invalid extends Error {}

function toolsOf(list) {
  if (!Array.isArray(list)) throw new Error(say("Write a list of tools: [{…}]."));
  return list.map((tool) => (tool?.type ? tool : { type: "function", function: tool }));
}

function schemaOf(schema) {
  if (schema === null || typeof schema !== "object" || Array.isArray(schema)) throw new Error(say("Write a JSON schema: {…}."));
  const whole = "schema" in schema && !("type" in schema) ? schema : { name: "answer", schema };
  return { type: "json_schema", json_schema: whole };
}

function parameters() {
  if (!settings.reportValidity()) throw new Invalid(say("Nothing was sent. Correct what is marked."));
  const found = {};
  for (const name of ["temperature", "top_p", "max_tokens", "seed", "n"]) {
    if (settings.elements[name].value !== "") found[name] = Number(settings.elements[name].value);
  }
  const stop = settings.elements.stop.value.split("\n").filter(Boolean);
  if (stop.length) found.stop = stop;
  const tools = parsed(settings.elements.tools, toolsOf);
  if (tools?.length) {
    found.tools = tools;
    if (settings.elements.tool_choice.value) found.tool_choice = settings.elements.tool_choice.value;
  }
  const format = parsed(settings.elements.schema, schemaOf);
  if (format) found.response_format = format;
  if (settings.elements.stream.checked) Object.assign(found, { stream: true, stream_options: { include_usage: true } });
  return found;
}

function bodyWith(messages) {
  const system = settings.elements.system.value;
  const before = turns.filter((turn) => turn.reply).flatMap((turn) => [...turn.messages, turn.reply]);
  const all = [...(system ? [{ role: "system", content: system }] : []), ...before, ...messages];
  return { model: settings.elements.model.value, messages: all, ...parameters() };
}

// The results of the tools that the last answer called, then what was written.
function written() {
  const last = turns.findLast((turn) => turn.reply);
  const results = (last?.results ?? []).map(({ id, field }) => ({ role: "tool", tool_call_id: id, content: field.value }));
  const text = prompt.value.trim();
  if (!text && !images.length) return results;
  const parts = [...(text ? [{ type: "text", text }] : []), ...images.map((image) => ({ type: "image_url", image_url: { url: image.url } }))];
  return [...results, { role: "user", content: images.length ? parts : text }];
}

// ---- the key

async function keyOf(project, renew) {
  if (!renew && key?.project === project && key.until > performance.now()) return key;
  const token = settings.querySelector("[name=csrfmiddlewaretoken]").value;
  const options = { method: "POST", headers: { "X-CSRFToken": token }, body: new URLSearchParams({ project }), redirect: "manual" };
  const response = await fetch(keyUrl, options);
  if (response.type === "opaqueredirect") throw new Invalid(say("You are signed out. Sign in again in another tab, then send again."));
  if (!response.ok && response.headers.get("content-type")?.startsWith("application/json")) throw new Invalid((await response.json()).problem);
  if (!response.ok) {
    const why = { 403: say("you may not call models here any more"), 404: say("you are not a member any more"), 429: say("too many changes within a minute") };
    throw new Invalid(say("No key for this page: {why}. Reload the page.", { why: why[response.status] ?? `HTTP ${response.status}` }));
  }
  const issued = await response.json();
  const made = performance.now();
  key = { project, text: issued.key, made, until: made + (issued.lifetime_seconds - 30) * 1000 };
  return key;
}

async function call(turn, signal) {
  let current = await keyOf(turn.project, false);
  for (let renewed = false; ; ) {
    const headers = { ...turn.headers, "Content-Type": "application/json", Authorization: `Bearer ${current.text}` };
    const sent = performance.now();
    const options = { method: "POST", headers, body: turn.body, signal, credentials: "omit", redirect: "error" };
    const response = await fetch(`${base}/chat/completions`, options);
    if (response.status !== 401) return { response, sent };
    const code = (await response.clone().json().catch(() => null))?.error?.code;
    if (code === "invalid_api_key" && performance.now() - current.made < LEARNED_MS) {
      await new Promise((resolve) => { setTimeout(resolve, 300); });
      signal.throwIfAborted();
    } else if (RENEWABLE.includes(code) && !renewed) {
      renewed = true;
      current = await keyOf(turn.project, true);
    } else {
      key = null; // Whoever revoked it meant it: only the next message asks for another.
      return { response, sent };
    }
  }
}

// ---- an answer

class Answer {
  constructor(turn) {
    this.turn = turn;
    this.choices = new Map();
    this.status = element("span", { class: "muted", role: "status", "data-testid": "status", text: say("Sending…") });
    this.texts = element("div", {});
    this.facts = element("dl", { class: "facts", "data-testid": "journey", hidden: true });
    this.footer = element("footer", {});
    const header = element("header", {}, element("b", { text: JSON.parse(turn.body).model }), this.status);
    this.element = element("section", { class: "answer", "data-testid": "answer", "aria-busy": "true" }, header, this.texts, this.facts, this.footer);
    this.usage = null;
    this.finished = false;
    this.firstAt = this.lastAt = null;
  }

  choice(index) {
    if (!this.choices.has(index)) {
      const box = element("div", {});
      if (index) box.append(element("b", { class: "small", text: say("Choice {number}", { number: index + 1 }) }));
      this.texts.append(box);
      this.choices.set(index, { box, text: "", calls: [], finish: "" });
    }
    return this.choices.get(index);
  }

  // One delta of a stream, or one whole message.
  add(index, delta) {
    const choice = this.choice(index);
    const reasoning = delta.reasoning_content ?? delta.reasoning;
    if (typeof delta.content === "string" && delta.content) {
      choice.write ??= growing(choice.box.appendChild(element("div", { class: "text", "data-testid": "text" })));
      choice.text += delta.content;
      choice.write(delta.content);
    }
    if (typeof reasoning === "string" && reasoning) {
      choice.think ??= growing(choice.box.appendChild(element("details", { class: "plain", open: true }, element("summary", { text: say("Reasoning") }))).appendChild(element("div", { class: "text muted" })));
      choice.think(reasoning);
    }
    for (const [position, call] of (delta.tool_calls ?? []).entries()) this.addCall(choice, call.index ?? position, call);
  }

  addCall(choice, index, piece) {
    const call = (choice.calls[index] ??= this.newCall(choice));
    if (piece.id) call.id = piece.id;
    if (piece.function?.name) {
      call.name += piece.function.name;
      call.title.textContent = call.name;
    }
    if (piece.function?.arguments) {
      call.arguments += piece.function.arguments;
      call.write(piece.function.arguments);
    }
  }

  newCall(choice) {
    const title = element("b", {});
    const text = element("div", { class: "text mono" });
    const box = element("div", { class: "call", "data-testid": "tool-call" }, element("span", { class: "muted", text: `${say("Calls")} ` }), title, text);
    choice.box.append(box);
    return { id: "", name: "", arguments: "", title, box, write: growing(text) };
  }

  note(moment) {
    this.firstAt ??= moment;
    this.lastAt = moment;
  }

  // The message for the next request; null if there is none that a model could be given.
  reply() {
    const first = this.choices.get(0);
    if (!first) return null;
    const calls = this.finished ? first.calls.filter((call) => call?.name) : [];
    if (!first.text && !calls.length) return null;
    const made = calls.map((call) => ({ id: call.id, type: "function", function: { name: call.name, arguments: call.arguments } }));
    return { role: "assistant", content: first.text, ...(made.length ? { tool_calls: made } : {}) };
  }

  // Fields for the results of the tools that it called.
  results() {
    if (!this.finished) return [];
    return (this.choices.get(0)?.calls ?? []).filter((call) => call?.name).map((call) => {
      const field = element("textarea", { rows: 2, class: "mono", "aria-label": say("Result of {tool}", { tool: call.name }) });
      call.box.append(element("div", { class: "field" }, element("label", { text: say("Result of {tool}, sent with your next message", { tool: call.name }) }), field));
      return { id: call.id, field };
    });
  }

  fact(name, value, id) {
    const term = element("dt", { text: name });
    const box = element("div", { "data-fact": id }, term, element("dd", { text: value, "data-testid": `fact-${id}` }));
    const after = [...this.facts.children].find((each) => FACTS.indexOf(each.dataset.fact) >= FACTS.indexOf(id));
    if (after?.dataset.fact === id) after.replaceWith(box);
    else this.facts.insertBefore(box, after ?? null);
    this.facts.hidden = false;
  }

  showHeaders(headers) {
    this.result = headers.get("x-cache") ?? "";
    const reason = headers.get("x-cache-reason");
    const said = {
      hit: headers.has("age") ? say("hit, stored {seconds} s ago", { seconds: headers.get("age") }) : say("hit"),
      miss: say("miss"),
      coalesced: say("shared with an identical request that ran"),
      bypass: say("bypassed: {why}", { why: BYPASSES[reason] ?? reason }),
    };
    if (this.result) this.fact(say("Prediction cache"), said[this.result] ?? this.result, "cache");
    const route = headers.get("x-route");
    if (route) {
      const [why, ...rest] = route.split(";").map((each) => each.trim());
      const warm = rest.find((each) => each.startsWith("warm_tokens="))?.slice("warm_tokens=".length);
      const tokens = Number(warm) ? say(", about {tokens} tokens warm", { tokens: count(Number(warm)) }) : "";
      this.fact(say("Route"), `${why}: ${ROUTES[why] ?? ""}${tokens}`, "route");
    }
    for (const [name, value] of headers) {
      const amount = /^x-(cost|saved)-([a-z]{3})$/.exec(name);
      if (amount?.[1] === "cost") this.fact(say("Cost"), money(Number(value), amount[2].toUpperCase()), "cost");
      if (amount?.[1] === "saved") this.fact(say("Saved by prediction cache"), money(Number(value), amount[2].toUpperCase()), "saved");
    }
  }

  showUsage(sent) {
    if (this.firstAt !== null) this.fact(say("First token, here"), milliseconds(this.firstAt - sent), "ttft");
    const { usage } = this;
    if (!usage) return;
    const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
    const reasoning = usage.completion_tokens_details?.reasoning_tokens ?? 0;
    const avoided = this.result === "hit" ? say(", avoided") : "";
    this.fact(`${say("Prompt tokens, uncached + cached")}${avoided}`, `${count(usage.prompt_tokens - cached)} + ${count(cached)}`, "prompt");
    const thought = reasoning ? say(", {tokens} of them reasoning", { tokens: count(reasoning) }) : "";
    this.fact(`${say("Completion tokens")}${avoided}`, `${count(usage.completion_tokens)}${thought}`, "completion");
    const seconds = (this.lastAt - this.firstAt) / 1000;
    if (this.result !== "hit" && usage.completion_tokens > 1 && seconds > 0.05) {
      const each = seconds / (usage.completion_tokens - 1);
      this.fact(say("Speed"), say("{rate} tokens/s, {time} each", { rate: (1 / each).toFixed(1), time: milliseconds(each * 1000) }), "speed");
    }
  }

  // The stored record: what was charged and saved, and the gateway's own times.
  showRecord(record) {
    if (record.amount_pico === null) this.fact(say("Cost"), say("no price yet"), "cost");
    else this.fact(say("Cost"), money(record.amount_pico / 1e12, record.currency), "cost");
    const predicted = record.saved_prediction_pico;
    const saver = predicted ? say("Saved by prediction cache") : say("Saved by prefix cache");
    this.fact(saver, money((predicted || record.saved_prefix_pico) / 1e12, record.currency), "saved");
    if (record.ttft_ms !== null) this.fact(say("First token, at the gateway"), milliseconds(record.ttft_ms), "server-ttft");
    if (record.tpot_ms !== null) this.fact(say("Each further token, at the gateway"), milliseconds(record.tpot_ms), "tpot");
    if (record.completion_tokens && !this.usage) this.fact(say("Completion tokens"), `${count(record.completion_tokens)}, ${record.tokens_source}`, "completion");
    this.facts.dataset.record = "arrived";
  }

  fail(text, { code, doc_url: explained } = {}) {
    const parts = code ? [element("span", { class: "mono", text: ` ${code}` })] : [];
    if (explained?.startsWith(`${location.origin}/docs/`)) parts.push(" ", element("a", { class: "link", href: explained, text: say("What this means") }));
    this.element.insertBefore(element("p", { class: "problem", role: "alert", "data-testid": "failure" }, text, ...parts), this.facts);
  }

  end(status, id) {
    this.status.textContent = status;
    this.element.setAttribute("aria-busy", "false");
    this.footer.append(element("button", { type: "button", class: "plain", "data-testid": "again", text: say("Send again"), onclick: () => run(this.turn) }));
    if (id) this.footer.append(element("a", { class: "link", href: requestUrl.replace(anyRequest, encodeURIComponent(id)), "data-testid": "request-link", text: say("Request") }));
    this.footer.append(codeOf(this.turn));
  }
}

// ---- the stream

async function* eventsOf(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const pieces = (rest + value).split(/\r?\n\r?\n/);
    rest = pieces.pop();
    for (const piece of pieces) {
      const lines = piece.split(/\r?\n/);
      const data = lines.filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trimStart()).join("\n");
      yield { data, comment: lines[0].startsWith(":") ? lines[0].slice(1).trim() : "" };
    }
  }
}

async function readStream(answer, response) {
  for await (const { data, comment } of eventsOf(response.body)) {
    if (comment) answer.status.textContent = `${comment[0].toUpperCase()}${comment.slice(1)}…`;
    if (data === "[DONE]") {
      answer.finished = true;
      return;
    }
    if (!data) continue;
    const chunk = JSON.parse(data);
    if (chunk.error) {
      answer.fail(chunk.error.message, chunk.error);
      return;
    }
    if (chunk.usage) answer.usage = chunk.usage;
    for (const choice of chunk.choices ?? []) {
      if (choice.finish_reason) answer.choice(choice.index).finish = choice.finish_reason;
      answer.add(choice.index, choice.delta ?? {});
      if (choice.delta?.content || choice.delta?.tool_calls || choice.delta?.reasoning_content || choice.delta?.reasoning) {
        answer.note(performance.now());
        answer.status.textContent = say("Writing…");
      }
    }
  }
  answer.fail(say("The stream ended before its end. What arrived is kept."));
}

async function readWhole(answer, response) {
  const document = await response.json();
  answer.usage = document.usage ?? null;
  for (const choice of document.choices ?? []) {
    answer.choice(choice.index).finish = choice.finish_reason ?? "";
    answer.add(choice.index, choice.message ?? {});
  }
  answer.finished = true;
}

async function readRefusal(answer, response, turn) {
  const refused = (await response.json().catch(() => null))?.error;
  const images = turn.body.includes('"image_url"') && response.status === 400;
  answer.fail(`${images ? `${say("This model may not read images.")} ` : ""}${refused?.message ?? `HTTP ${response.status}.`}`, refused ?? {});
}

function ended(answer) {
  const finish = answer.choices.get(0)?.finish;
  if (!answer.finished) return say("Broken off");
  return { length: say("Cut at its limit of tokens"), tool_calls: say("Calls a tool: write its result, then send"), content_filter: say("Stopped by a filter") }[finish] ?? say("Complete");
}

async function run(turn) {
  if (running) return;
  complain("");
  const controller = new AbortController();
  running = controller;
  busy(true);
  const answer = new Answer(turn);
  turn.element.append(answer.element);
  answer.element.scrollIntoView({ block: "nearest" });
  let id = null;
  let status = say("Failed");
  try {
    const { response, sent } = await call(turn, controller.signal);
    id = response.headers.get("x-request-id");
    answer.showHeaders(response.headers);
    try {
      if (!response.ok) await readRefusal(answer, response, turn);
      else if (response.headers.get("content-type")?.startsWith("text/event-stream")) await readStream(answer, response);
      else await readWhole(answer, response);
    } finally {
      answer.showUsage(sent);
    }
    status = response.ok ? ended(answer) : say("Refused, HTTP {status}", { status: response.status });
  } catch (error) {
    if (controller.signal.aborted) status = say("Stopped. What was written until then is charged.");
    else answer.fail(reasonOf(error, id));
  } finally {
    running = null;
    busy(false);
  }
  answer.end(status, id);
  const reply = answer.reply();
  if (reply) {
    turn.reply = reply;
    turn.results = answer.results();
  } else if (!turn.reply && !prompt.value && !images.length) restore(turn);
  if (id) await follow(answer, id);
}

function reasonOf(error, id) {
  if (error instanceof Invalid) return error.message;
  if (error instanceof SyntaxError) return say("The gateway sent what this page cannot read. What arrived is kept.");
  if (id) return say("The connection to the gateway broke. What arrived is kept; send again for a whole answer.");
  return say("No answer from {base}. Either the gateway cannot be reached there, or it accepts no calls from {here}: an operator sets HEARTH_API_URL and HEARTH_PORTAL_URL.", { base, here: location.origin });
}

// Put what was sent without an answer back, so that nobody writes it twice.
function restore(turn) {
  const { content } = turn.messages.at(-1);
  const parts = typeof content === "string" ? [{ type: "text", text: content }] : content;
  if (turn.messages.at(-1).role !== "user") return;
  prompt.value = parts.find((part) => part.type === "text")?.text ?? "";
  images = parts.filter((part) => part.type === "image_url").map((part) => ({ name: "image", url: part.image_url.url }));
  showImages();
}

// The record arrives with the drain, a moment after the answer.
async function follow(answer, id) {
  for (const ms of RECORD_AFTER_MS) {
    await new Promise((resolve) => { setTimeout(resolve, ms); });
    const response = await fetch(usageUrl + encodeURIComponent(id), { headers: { Accept: "application/json" } }).catch(() => null);
    if (response?.ok) {
      answer.showRecord(await response.json());
      return;
    }
    if (response && response.status !== 404) return;
  }
}

// ---- the same request as code

const shortened = (body) => body.replace(/"data:(image\/[a-z]+);base64,[^"]*"/g, '"data:$1;base64,…"');

function python(value, indent = "") {
  const inner = `${indent}    `;
  if (Array.isArray(value)) return value.length ? `[\n${value.map((each) => `${inner}${python(each, inner)},\n`).join("")}${indent}]` : "[]";
  if (value && typeof value === "object") {
    return `{\n${Object.entries(value).map(([name, each]) => `${inner}${JSON.stringify(name)}: ${python(each, inner)},\n`).join("")}${indent}}`;
  }
  return { true: "True", false: "False", null: "None" }[String(value)] ?? JSON.stringify(value);
}

const CODES = {
  curl: (body, headers) => {
    const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
    const lines = Object.entries(headers).map(([name, value]) => ` \\\n  -H ${quoted(`${name}: ${value}`)}`).join("");
    return `export HEARTH_KEY=hk_…\ncurl ${base}/chat/completions \\\n  -H "Authorization: Bearer $HEARTH_KEY" -H "Content-Type: application/json"${lines} \\\n  -d ${quoted(JSON.stringify(body, null, 2))}`;
  },
  Python: (body, headers) => {
    const fields = { ...body, ...(Object.keys(headers).length ? { extra_headers: headers } : {}) };
    const call = Object.entries(fields).map(([name, value]) => `    ${name}=${value === body[name] && typeof value === "string" ? JSON.stringify(value) : python(value, "    ")},\n`).join("");
    const read = body.stream
      ? "for chunk in answer:\n    for choice in chunk.choices:\n        print(choice.delta.content or \"\", end=\"\", flush=True)"
      : "print(answer.choices[0].message.content)";
    return `import os\n\nfrom openai import OpenAI\n\nclient = OpenAI(base_url=${JSON.stringify(base)}, api_key=os.environ["HEARTH_KEY"])  # hk_…\nanswer = client.chat.completions.create(\n${call})\n${read}`;
  },
  JavaScript: (body, headers) => {
    const options = Object.keys(headers).length ? `, { headers: ${JSON.stringify(headers)} }` : "";
    const read = body.stream
      ? "for await (const chunk of answer) process.stdout.write(chunk.choices[0]?.delta?.content ?? \"\");"
      : "console.log(answer.choices[0].message.content);";
    return `import OpenAI from "openai";\n\nconst client = new OpenAI({ baseURL: ${JSON.stringify(base)}, apiKey: process.env.HEARTH_KEY }); // hk_…\nconst answer = await client.chat.completions.create(${JSON.stringify(body, null, 2)}${options});\n${read}`;
  },
};

let codes = 0;

function codeOf(turn) {
  const body = JSON.parse(shortened(turn.body));
  const id = `code-${(codes += 1)}`;
  const text = element("pre", { id, "data-testid": "code" });
  const buttons = Object.entries(CODES).map(([name, write]) => element("button", { type: "button", text: name, "aria-pressed": "false", onclick: ({ currentTarget }) => {
    text.textContent = write(body, turn.headers);
    for (const each of buttons) each.setAttribute("aria-pressed", String(each === currentTarget));
  } }));
  const copy = element("button", { type: "button", class: "plain", "data-copy": id, text: say("Copy") });
  const shown = element("details", { class: "plain code" }, element("summary", { text: say("Show as code"), "data-testid": "show-code" }), element("div", { class: "segments" }, ...buttons), element("div", { class: "command wide" }, text, copy));
  buttons[0].click();
  return shown;
}

// ---- images

function showImages() {
  document.getElementById("images").replaceChildren(...images.map((image) => element("figure", {}, element("img", { src: image.url, alt: image.name }), element("button", { type: "button", class: "plain", text: say("Remove"), onclick: () => {
    images = images.filter((each) => each !== image);
    showImages();
  } }))));
}

function read(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve({ name: file.name, url: reader.result });
    reader.onerror = () => reject(new Invalid(say("{file} cannot be read.", { file: file.name })));
    reader.readAsDataURL(file);
  });
}

async function addFiles(files) {
  try {
    for (const file of files) {
      if (!IMAGE_TYPES.includes(file.type)) throw new Invalid(say("{file} is no PNG, JPEG, WebP or GIF.", { file: file.name }));
      const taken = images.reduce((sum, image) => sum + image.url.length, 0);
      if (taken + (file.size * 4) / 3 > maxBodyBytes) throw new Invalid(say("{file} is too large: a request has at most {size} MiB, in which an image takes a third more than its file.", { file: file.name, size: count(Math.floor(maxBodyBytes / 1048576)) }));
      images.push(await read(file));
    }
    complain("");
  } catch (error) {
    complain(error.message);
  }
  showImages();
}

// ---- the page

function busy(is) {
  document.getElementById("send").disabled = is;
  document.getElementById("stop-button").hidden = !is;
}

function showSaid(messages) {
  return messages.map((message) => {
    const parts = typeof message.content === "string" ? [{ type: "text", text: message.content }] : message.content;
    const title = message.role === "tool" ? say("Result of a tool") : say("You");
    const shown = parts.map((part) => (part.type === "text" ? element("div", { class: "text", text: part.text }) : element("img", { src: part.image_url.url, alt: say("An image that you sent") })));
    return element("div", { class: "said images" }, element("div", {}, element("b", { class: "small", text: title }), ...shown));
  });
}

function send() {
  if (running) return;
  try {
    const messages = written();
    const chosen = settings.elements.model.selectedOptions[0];
    if (images.length && "blind" in chosen.dataset) throw new Invalid(say("{model} reads no images. Choose another model, or remove them.", { model: chosen.value }));
    if (!messages.length) throw new Invalid(say("Write a message first."));
    const body = JSON.stringify(bodyWith(messages));
    if (new Blob([body]).size > maxBodyBytes) throw new Invalid(say("The request is larger than the {size} MiB that are allowed. Remove an image, or begin a new conversation.", { size: count(Math.floor(maxBodyBytes / 1048576)) }));
    const cache = settings.elements.cache.value;
    const turn = { messages, body, project: settings.elements.project.value, headers: cache ? { "x-prediction-cache": cache } : {}, reply: null, results: [] };
    turn.element = element("article", { class: "turn", "data-testid": "turn" }, ...showSaid(messages));
    turnList.append(turn.element);
    turns.push(turn);
    document.getElementById("nothing").hidden = true;
    prompt.value = "";
    images = [];
    showImages();
    run(turn);
  } catch (error) {
    if (!(error instanceof Invalid)) throw error;
    complain(error.message);
  }
}

function clear() {
  running?.abort();
  turns = [];
  turnList.replaceChildren();
  document.getElementById("nothing").hidden = false;
  complain("");
  prompt.focus();
}

composer.addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
settings.addEventListener("submit", (event) => event.preventDefault());
settings.addEventListener("change", () => {
  const query = new URLSearchParams(location.search);
  for (const name of ["model", "project"]) query.set(name, settings.elements[name].value);
  history.replaceState(null, "", `?${query}`);
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    send();
  }
  if (event.key === "Escape") running?.abort();
});
document.getElementById("stop-button").addEventListener("click", () => running?.abort());
document.getElementById("clear").addEventListener("click", clear);
document.getElementById("files").addEventListener("change", (event) => {
  addFiles([...event.target.files]);
  event.target.value = "";
});
// On a phone the settings would be before everything else.
if (matchMedia("(max-width: 1000px)").matches) document.getElementById("more").open = false;
else prompt.focus({ preventScroll: true });
