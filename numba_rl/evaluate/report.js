// Reads the values under the pointer off every picture that carries them.
(() => {
  const tip = document.getElementById("tip");
  const form = (v, unit) => {
    if (v === null) return "n/a";
    const percent = unit === "percent", x = percent ? 100 * v : v, size = Math.abs(x);
    const digits = unit === "count" || unit === "bars" || size >= 10000 ? { maximumFractionDigits: unit === "count" ? 4 : 0 }
      : size >= 1 ? { minimumFractionDigits: 2, maximumFractionDigits: size < 100 && !percent ? 5 : 2 } : { maximumSignificantDigits: 4 };
    return x.toLocaleString("en-US", digits) + (percent ? "%" : unit === "times" ? "x" : "");
  };
  for (const figure of document.querySelectorAll("figure.chart")) {
    const source = figure.querySelector('script[type="application/json"]'), svg = figure.querySelector("svg");
    if (!source || !svg) continue;
    const plot = JSON.parse(source.textContent);
    if (!plot.x.length) continue;
    const box = svg.viewBox.baseVal;
    const line = svg.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "line"));
    line.setAttribute("class", "cursor");
    line.setAttribute("y1", 12);
    line.setAttribute("y2", box.height - 28);
    const hide = () => { tip.hidden = true; line.style.display = "none"; };
    hide();
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("pointermove", (event) => {
      const frame = svg.getBoundingClientRect(), x = (event.clientX - frame.left) / frame.width * box.width;
      let low = 0, high = plot.x.length - 1;
      while (high - low > 1) { const middle = (low + high) >> 1; if (plot.x[middle] < x) low = middle; else high = middle; }
      const at = Math.abs(plot.x[low] - x) < Math.abs(plot.x[high] - x) ? low : high;
      line.style.display = "";
      line.setAttribute("x1", plot.x[at]);
      line.setAttribute("x2", plot.x[at]);
      const when = plot.t[at];
      tip.replaceChildren(typeof when === "number" ? new Date(when).toISOString().slice(0, 16).replace("T", " ") : when);
      for (const [name, style, values] of plot.s) {
        const row = document.createElement("div"), swatch = document.createElement("i"), value = document.createElement("b");
        row.className = style;
        value.textContent = form(values[at], plot.u);
        row.append(swatch, name, value);
        tip.append(row);
      }
      tip.hidden = false;
      const left = event.clientX + 16 + tip.offsetWidth > innerWidth ? event.clientX - 16 - tip.offsetWidth : event.clientX + 16;
      tip.style.left = `${Math.max(4, left)}px`;
      tip.style.top = `${Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 6)}px`;
    });
  }
})();
