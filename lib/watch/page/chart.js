// One chart: uPlot with hover values, zoom and keys. Drawings of all charts share range and cursor.
import { byId, bytes, color, compact, duration, element, short } from './dom.js';
import { saveCsv, savePng } from './export.js';
import { state } from './state.js';

const HEIGHT = 220;
/** Line widths: plain, and of values behind their smoothed line. */
const [LINE, FAINT] = [1.6, 1];

const xLabel = (value) => (state.axis === 'step' ? compact(value) : duration(value));
/** Distances of ticks in bytes. */
const BYTE_TICKS = Array.from({ length: 50 }, (_, i) => 2 ** i);

export class Chart {
  /**
   * `spec`: title and format. `zoom(range)` sets the range of all charts; null shows everything.
   */
  constructor(spec, zoom) {
    this.spec = spec;
    this.zoom = zoom;
    this.lines = [];
    this.plot = null;
    this.shape = '';
    this.legend = element('ul', { class: 'legend' });
    this.canvas = element('div', {
      class: 'plot',
      tabindex: 0,
      role: 'group',
      'aria-roledescription': 'chart',
      'aria-describedby': 'keys',
    });
    const button = (label, text, run) =>
      element('button', { type: 'button', 'aria-label': label, title: label, onclick: run }, text);
    const { title } = spec;
    this.root = element(
      'section',
      { class: 'card chart', 'aria-label': title, 'data-chart': spec.id },
      element(
        'div',
        { class: 'row' },
        element('h2', {}, title),
        button(`Save ${title} as PNG`, 'PNG', () => savePng(this)),
        button(`Save ${title} as CSV`, 'CSV', () => saveCsv(this)),
      ),
      this.canvas,
      this.legend,
    );
    this.canvas.addEventListener('keydown', (event) => this.key(event));
    this.canvas.addEventListener('dblclick', () => zoom(null));
    this.canvas.addEventListener('touchmove', (event) => this.touch(event), { passive: true });
  }

  /**
   * Draws `lines`: { label, color, dash, x, y, min, max, faint, points }. Lines with the same x
   * array are one table.
   */
  draw(lines) {
    this.lines = lines;
    this.root.hidden = lines.length === 0;
    if (lines.length === 0) return;
    const { data, series, bands } = aligned(lines);
    const isLog = this.spec.canLog && state.log;
    const shape = JSON.stringify([series.map(({ key }) => key), isLog, state.axis]);
    if (this.plot && shape === this.shape) this.plot.setData(data);
    else this.build(data, series, bands, isLog);
    this.shape = shape;
    this.describe();
  }

  build(data, series, bands, isLog) {
    this.plot?.destroy();
    const axis = {
      stroke: color('--quiet'),
      grid: { stroke: color('--grid'), width: 1 },
      ticks: { stroke: color('--grid'), width: 1 },
      font: '11px system-ui, sans-serif',
    };
    const { format = short, tick = format === short ? compact : format } = this.spec;
    const options = {
      width: this.width(),
      height: HEIGHT,
      legend: { show: false },
      padding: [8, 18, 0, 0],
      scales: {
        x: { time: false, range: (_, low, high) => state.range ?? padded(low, high) },
        y: { distr: isLog ? 3 : 1 },
      },
      axes: [
        { ...axis, size: 28, space: 70, values: (_, values) => values.map(xLabel) },
        {
          ...axis,
          size: 62,
          values: (_, values) => values.map((one) => (one === null ? '' : tick(one))),
          ...(format === bytes && { incrs: BYTE_TICKS }),
        },
      ],
      series: [{}, ...series.map(({ key, ...one }) => one)],
      bands,
      cursor: {
        sync: { key: 'runs', scales: ['x', null], setSeries: false },
        drag: { x: true, y: false, setScale: false, dist: 4 },
        bind: { dblclick: () => null },
        points: { size: 6 },
      },
      hooks: {
        setCursor: [() => this.describe()],
        setSelect: [(plot) => this.select(plot)],
      },
    };
    this.plot = new uPlot(options, data, this.canvas);
  }

  /** Takes the selected range. */
  select(plot) {
    const { left, width } = plot.select;
    if (width < 4) return;
    const range = [plot.posToVal(left, 'x'), plot.posToVal(left + width, 'x')];
    plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    this.zoom(range);
  }

  width() {
    return Math.max(220, this.canvas.clientWidth || 320);
  }

  resize() {
    if (this.plot && this.plot.width !== this.width()) {
      this.plot.setSize({ width: this.width(), height: HEIGHT });
    }
  }

  /** Forgets the drawing: colors come from the theme. */
  restyle() {
    this.shape = '';
    this.draw(this.lines);
  }

  /** Writes the values at the cursor, or the last values, into the legend. */
  describe() {
    const { plot, lines } = this;
    if (!plot) return;
    const at = plot.cursor.idx;
    const { format = short } = this.spec;
    const items = lines
      .filter(({ isHidden }) => !isHidden)
      .map((line) => {
        const value = valueAt(line, at === null || at === undefined ? null : plot.data[0][at]);
        const swatch = element('span', { class: 'swatch' });
        swatch.style.background = line.color;
        return element('li', {}, swatch, `${line.label} `, element('b', {}, format(value)));
      });
    const place = at === null || at === undefined ? null : plot.data[0][at];
    if (place !== null && place !== undefined) {
      items.unshift(element('li', { class: 'quiet' }, `${state.axis} ${xLabel(place)}`));
    }
    this.legend.replaceChildren(...items);
    const text = items.map((item) => item.textContent).join(', ');
    this.canvas.setAttribute('aria-label', `${this.spec.title}: ${text}`);
  }

  key(event) {
    const { plot } = this;
    if (!plot || event.ctrlKey || event.metaKey || event.altKey) return;
    const { min, max } = plot.scales.x;
    const steps = { ArrowLeft: -1, ArrowRight: 1 };
    if (event.key in steps && event.shiftKey) this.zoom(moved([min, max], steps[event.key] / 4));
    else if (event.key in steps) this.move(steps[event.key]);
    else if (event.key === '+' || event.key === '=')
      this.zoom(scaled([min, max], 0.5, this.place()));
    else if (event.key === '-') this.zoom(scaled([min, max], 2, this.place()));
    else if (event.key === '0' || event.key === 'Escape') this.zoom(null);
    else return;
    event.preventDefault();
  }

  /** x of the cursor; null without one. */
  place() {
    const { idx } = this.plot.cursor;
    return idx === null || idx === undefined ? null : this.plot.data[0][idx];
  }

  /** Moves the cursor by a share of the points, at least one. */
  move(direction) {
    const { plot } = this;
    const [x] = plot.data;
    const by = Math.max(1, Math.round(x.length / 200)) * direction;
    const now = plot.cursor.idx ?? (direction > 0 ? -1 : x.length);
    const next = Math.min(x.length - 1, Math.max(0, now + by));
    plot.setCursor({ left: plot.valToPos(x[next], 'x'), top: 10 });
    byId('reading').textContent = this.canvas.getAttribute('aria-label');
  }

  touch(event) {
    const { plot } = this;
    const [finger] = event.touches;
    if (!plot || !finger) return;
    const { left } = plot.over.getBoundingClientRect();
    plot.setCursor({ left: finger.clientX - left, top: 10 });
  }
}

/** A range moved by a share of its length. */
export const moved = ([from, to], share) => {
  const by = (to - from) * share;
  return [from + by, to + by];
};

/** A range times `factor` around `center`, default: its middle. */
export const scaled = ([from, to], factor, center = null) => {
  const middle = center === null || center < from || center > to ? (from + to) / 2 : center;
  return [middle - (middle - from) * factor, middle + (to - middle) * factor];
};

const padded = (low, high) => {
  if (low === null || high === null) return [0, 1];
  return low === high ? [low - 0.5, high + 0.5] : [low, high];
};

/** The value at x or before it; the last one for null. */
function valueAt({ x, y }, place) {
  let at = y.length - 1;
  if (place !== null) {
    while (at > 0 && x[at] > place) at--;
  }
  while (at > 0 && y[at] === null) at--;
  return y[at] ?? null;
}

/** The lines as one table of uPlot, and its series. Undefined values do not break a line. */
function aligned(lines) {
  const tables = new Map();
  for (const line of lines) {
    const columns = tables.get(line.x) ?? [];
    tables.set(line.x, columns);
    if (line.max)
      columns.push(
        { line, values: line.max, edge: 'max' },
        { line, values: line.min, edge: 'min' },
      );
    columns.push({ line, values: line.y, edge: null });
  }
  const all = [...tables.values()].flat();
  const data = [...tables].map(([x, columns]) => [x, ...columns.map(({ values }) => values)]);
  const bands = [];
  const series = all.map(({ line, edge }, i) => {
    if (edge === 'max') bands.push({ series: [i + 1, i + 2], fill: `${line.color}26` });
    return {
      key: [line.label, line.color, edge, line.faint ?? false, line.dash ?? null],
      label: line.label,
      stroke: edge ? 'transparent' : line.faint ? `${line.color}59` : line.color,
      width: edge || line.faint ? FAINT : LINE,
      dash: line.dash,
      points: { show: Boolean(line.points && !edge), size: 5, fill: line.color },
      spanGaps: false,
    };
  });
  return { data: data.length === 1 ? data[0] : uPlot.join(data), series, bands };
}
