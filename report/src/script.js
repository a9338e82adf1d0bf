// A crosshair and a tooltip for each line chart; arrow keys move it too. Text only, no markup from data.
for (const figure of document.querySelectorAll("figure.lines")) {
  const chart = JSON.parse(figure.dataset.chart);
  const area = figure.querySelector(".area"), svg = area.querySelector("svg"), cross = figure.querySelector(".cross"), tip = figure.querySelector(".tip");
  let at = null;
  const nearest = (xs, x) => {
    let lo = 0, hi = xs.length - 1;
    while (hi - lo > 1) { const mid = (lo + hi) >> 1; if (xs[mid] <= x) lo = mid; else hi = mid; }
    return x - xs[lo] <= xs[hi] - x ? lo : hi;
  };
  const hide = () => { cross.hidden = true; tip.hidden = true; at = null; };
  const show = (x) => {
    const lead = chart.s[0], step = lead.x[nearest(lead.x, x)];
    at = step;
    const share = (step - chart.a) / (chart.b - chart.a);
    cross.style.left = share * 100 + "%"; cross.hidden = false;
    tip.replaceChildren();
    const head = document.createElement("b");
    head.textContent = "step " + step;
    tip.append(head);
    for (const s of chart.s) {
      const i = nearest(s.x, step), row = document.createElement("span"), key = document.createElement("i");
      key.className = "key c" + s.c;
      row.append(key, s.n + " " + s.y[i] + (s.x[i] === step ? "" : " (step " + s.x[i] + ")"));
      tip.append(row);
    }
    tip.hidden = false;
    const box = area.getBoundingClientRect(), outer = figure.getBoundingClientRect();
    const left = box.left - outer.left + share * box.width;
    const flip = left + tip.offsetWidth + 16 > outer.width;
    tip.style.left = Math.max(4, flip ? left - tip.offsetWidth - 12 : left + 12) + "px";
    tip.style.top = box.top - outer.top + 12 + "px";
  };
  area.addEventListener("pointermove", (e) => {
    const box = area.getBoundingClientRect();
    show(chart.a + (e.clientX - box.left) / box.width * (chart.b - chart.a));
  });
  area.addEventListener("pointerleave", hide);
  svg.addEventListener("blur", hide);
  svg.addEventListener("keydown", (e) => {
    const xs = chart.s[0].x, way = { ArrowLeft: -1, ArrowRight: 1 }[e.key];
    if (!way) return;
    e.preventDefault();
    const i = at === null ? (way > 0 ? -1 : xs.length) : nearest(xs, at);
    show(xs[Math.min(xs.length - 1, Math.max(0, i + way))]);
  });
}
