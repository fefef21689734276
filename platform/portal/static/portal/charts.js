// Draw each [data-chart] with uPlot. The data is in a JSON block of the page, so no further request is needed.
"use strict";

(function () {
  // That of the profile; without one, the browser's.
  const timeZone = document.querySelector("[data-zone]")?.dataset.zone;
  const charts = new Map();

  function css(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }

  const TONES = { ember: "--ember", soft: "--ember-mid", grey: "--grey-mark", faint: "--line-2", bad: "--bad" };

  function compact(value) {
    return new Intl.NumberFormat(undefined, { notation: "compact", maximumFractionDigits: 1 }).format(value);
  }

  function dollars(value, sign) {
    if (value === 0) return `${sign}0`;
    if (value < 0) return `−${dollars(-value, sign)}`;
    if (Math.abs(value) >= 1000) return sign + compact(value);
    if (Math.abs(value) >= 0.01) return sign + value.toFixed(2);
    return sign + Number(value.toPrecision(3)).toLocaleString(undefined, { maximumFractionDigits: 12 });
  }

  function duration(seconds) {
    if (seconds === 0) return "0";
    if (seconds >= 36000) return `${compact(seconds / 3600)} h`;
    if (seconds >= 1) return `${compact(seconds)} s`;
    return `${Number((seconds * 1000).toPrecision(3))} ms`;
  }

  function format(value, spec) {
    if (value === null || value === undefined) return "–";
    if (spec.unit === "percent") return `${value.toFixed(1)} %`;
    if (spec.unit === "money") return dollars(value, spec.sign);
    if (spec.unit === "seconds") return duration(value);
    if (spec.unit === "rate") return Number(value.toPrecision(3)).toLocaleString();
    return value.toLocaleString();
  }

  function tick(value, spec) {
    if (spec.unit === "percent") return `${value} %`;
    if (spec.unit === "money") return dollars(value, spec.sign);
    if (spec.unit === "seconds") return duration(value);
    return compact(value);
  }

  // Stacked bars, with negative values below zero. uPlot draws bars from zero, so the longest sum is drawn first and
  // the others over it.
  function stacked(spec) {
    const up = spec.times.map(() => 0);
    const down = spec.times.map(() => 0);
    return spec.series.map((series) => series.values.map((value, index) => {
      const sums = value < 0 ? down : up;
      sums[index] += value ?? 0;
      return sums[index] || null; // a bar of height 0 would leave a line
    }));
  }

  // A line needs two neighbouring values; a single value is drawn as a point.
  function isolated(values) {
    const exists = (index) => values[index] !== null && values[index] !== undefined;
    return values.flatMap((_, index) => (exists(index) && !exists(index - 1) && !exists(index + 1) ? [index] : []));
  }

  function layers(spec) {
    const order = spec.series.map((_, index) => index);
    const values = spec.kind === "stack" ? stacked(spec) : spec.series.map((series) => series.values);
    if (spec.kind === "stack") order.reverse();
    return { data: [spec.times, ...order.map((index) => values[index])], order };
  }

  function seriesOptions(spec, series, maxBarWidth) {
    const colour = css(TONES[series.tone]);
    const base = { label: series.label, stroke: colour, points: { show: false } };
    if (spec.kind !== "stack") {
      const points = { show: true, size: 7, fill: colour, filter: () => isolated(series.values) };
      const fill = spec.kind === "area" ? `color-mix(in srgb, ${colour} 16%, transparent)` : undefined;
      return { ...base, points, width: 1.5, fill, spanGaps: false };
    }
    return { ...base, width: 0, fill: colour, paths: uPlot.paths.bars({ size: [0.78, maxBarWidth], align: 1 }) };
  }

  function legend(panel, spec, index) {
    for (const element of panel.querySelectorAll("[data-series]")) {
      const series = spec.series[Number(element.dataset.series)];
      element.querySelector("b").textContent = index === null ? series.total : format(series.values[index], spec);
    }
    const when = panel.querySelector("[data-when]");
    if (!when) return;
    when.textContent = index === null ? when.dataset.when : moment(spec, index);
  }

  function moment(spec, index) {
    const start = new Date(spec.times[index] * 1000);
    const format = spec.step >= 86400 ? { day: "numeric", month: "short" }
      : { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", hour12: false };
    return new Intl.DateTimeFormat(undefined, { ...format, timeZone }).format(start);
  }

  // Dragging over a chart sets the page's period in the URL.
  function zoom(plot) {
    const { left, width } = plot.select;
    if (width < 6) return;
    const query = new URLSearchParams(location.search);
    query.delete("period");
    query.delete("after");
    query.set("from", new Date(plot.posToVal(left, "x") * 1000).toISOString());
    query.set("to", new Date(plot.posToVal(left + width, "x") * 1000).toISOString());
    location.search = query.toString();
  }

  // A click on a step leads to its requests. The table below the chart has the same links for the keyboard.
  function leadToRequests(plot, spec) {
    if (!spec.requests) return;
    plot.over.classList.add("leads");
    let pressedAt = 0;
    plot.over.addEventListener("mousedown", (event) => { pressedAt = event.clientX; });
    plot.over.addEventListener("click", (event) => {
      const index = plot.cursor.idx;
      if (index === null || index === undefined || Math.abs(event.clientX - pressedAt) >= 6) return;
      const query = new URLSearchParams({
        from: new Date(spec.times[index] * 1000).toISOString(),
        to: new Date((spec.times[index + 1] ?? spec.to) * 1000).toISOString(),
      });
      location.href = `${spec.requests}?${query}`;
    });
  }

  function axis(extra) {
    return {
      stroke: css("--ink-3"),
      font: `12px ${css("--sans")}`,
      grid: { stroke: css("--line"), width: 1 },
      ticks: { show: false },
      ...extra,
    };
  }

  function scaleOf(spec) {
    if (spec.unit === "percent") return [0, 100];
    return (_, lowest, highest) => {
      const room = 0.08 * Math.max(highest, -lowest);
      return [lowest < 0 ? lowest - room : 0, highest > 0 ? highest + room : lowest < 0 ? 0 : 1];
    };
  }

  function options(panel, element, spec, order) {
    return {
      tzDate: (seconds) => (timeZone ? uPlot.tzDate(new Date(seconds * 1000), timeZone) : new Date(seconds * 1000)),
      width: element.clientWidth,
      height: element.clientHeight,
      padding: [8, 24, 0, 0], // on the right for half of the last label of the time axis
      legend: { show: false },
      cursor: { y: false, points: { show: spec.kind !== "stack" }, drag: { x: true, y: false, setScale: false } },
      scales: { x: { range: [spec.from, spec.to] }, y: { range: scaleOf(spec) } },
      series: [{}, ...order.map((index) => seriesOptions(spec, spec.series[index], 28))],
      axes: [
        axis({ grid: { show: false }, size: 28, space: 72, values: clockTicks }),
        axis({
          size: 66,
          space: 36,
          incrs: spec.unit === "count" ? [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6, 2e6, 5e6, 1e7, 2e7, 5e7, 1e8] : undefined,
          splits: spec.unit === "percent" ? () => [0, 25, 50, 75, 100] : undefined,
          values: (_, ticks) => ticks.map((value) => tick(value, spec)),
        }),
      ],
      hooks: {
        setCursor: [(plot) => legend(panel, spec, plot.cursor.idx ?? null)],
        setSelect: [zoom],
      },
    };
  }

  function clockTicks(plot, ticks) {
    const span = plot.scales.x.max - plot.scales.x.min;
    const format = span > 3 * 86400 ? { day: "numeric", month: "short" } : { hour: "2-digit", minute: "2-digit", hour12: false };
    const writer = new Intl.DateTimeFormat(undefined, { ...format, timeZone });
    return ticks.map((value) => writer.format(new Date(value * 1000)));
  }

  function draw(panel) {
    charts.get(panel)?.destroy();
    const element = panel.querySelector(".chart");
    const spec = JSON.parse(document.getElementById(panel.dataset.chart).textContent);
    const { data, order } = layers(spec);
    const plot = new uPlot(options(panel, element, spec, order), data, element);
    charts.set(panel, plot);
    leadToRequests(plot, spec);
    element.dataset.drawn = "true";
    legend(panel, spec, null);
  }

  const sizes = new ResizeObserver((entries) => {
    for (const entry of entries) {
      const plot = charts.get(entry.target.closest("[data-chart]"));
      if (plot && entry.contentRect.width) plot.setSize({ width: entry.contentRect.width, height: entry.contentRect.height });
    }
  });

  function drawAll() {
    for (const [panel, plot] of charts) {
      if (panel.isConnected) continue;
      plot.destroy();
      charts.delete(panel);
    }
    sizes.disconnect();
    for (const panel of document.querySelectorAll("[data-chart]")) {
      draw(panel);
      sizes.observe(panel.querySelector(".chart"));
    }
  }

  drawAll();
  document.addEventListener("hearth:swapped", drawAll);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
})();
