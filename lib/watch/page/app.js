// The page: asks the server once a second, and draws what changed.
import { get, Unauthorized } from './api.js';
import { Chart, moved, scaled } from './chart.js';
import { linesOf, specs } from './charts.js';
import { byId } from './dom.js';
import {
  drawConfig,
  drawLines,
  drawNotices,
  drawRanks,
  drawRuns,
  drawTexts,
  drawTiles,
  events,
} from './panels.js';
import { rangeOf, state } from './state.js';

/** Milliseconds between two questions: in view, hidden, and without a server. */
const [LIVE, HIDDEN, LOST] = [1000, 5000, 2000];
/** Runs that are drawn when the page opens. */
const FIRST = 6;

const charts = new Map();
/** By run: version and view of the series that are drawn. */
const drawn = new Map();
let timer = null;
let isAsking = false;

/** Asks for the runs, and for the data of runs that changed. */
async function refresh() {
  if (isAsking) return;
  isAsking = true;
  clearTimeout(timer);
  let wait = document.hidden ? HIDDEN : LIVE;
  try {
    const { runs } = await get('runs');
    takeRuns(runs);
    await refreshSeries();
    await refreshFocus();
    connection('connected', 'Connected');
  } catch (error) {
    wait = LOST;
    if (error instanceof Unauthorized) {
      connection('lost', 'Open the link that ds watch printed: this tab has no valid token.');
    } else connection('lost', 'No connection. The page tries again.');
  } finally {
    isAsking = false;
    timer = setTimeout(refresh, wait);
  }
}

function connection(kind, text) {
  const place = byId('connection');
  if (place.textContent !== text) place.textContent = text;
  place.className = kind;
}

function takeRuns(runs) {
  const isNew = runs.length > state.runs.length;
  const before = state.runs.length;
  state.runs = runs;
  if (isNew) for (let id = before; id < Math.min(runs.length, FIRST); id++) state.shown.add(id);
  drawRuns(changeRun);
}

function changeRun(what, id) {
  if (what === 'focus') state.focus = id;
  else if (!state.shown.delete(id)) state.shown.add(id);
  if (what === 'shown' && state.shown.has(id)) state.focus = id;
  drawRuns(changeRun);
  drawCharts();
  drawConfig();
  void refresh();
}

const viewKey = (id) => JSON.stringify([state.axis, state.range, state.runs[id].version, width()]);

/** Points of a chart: two for each pixel column of a chart. */
const width = () => Math.min(2000, Math.max(300, Math.round(byId('charts').clientWidth / 2)));

async function refreshSeries() {
  const stale = [...state.shown].filter((id) => drawn.get(id) !== viewKey(id));
  if (stale.length === 0) return;
  for (const id of stale) {
    const key = viewKey(id);
    const range = rangeOf(id);
    const [series, about] = await Promise.all([
      get('series', { run: id, axis: state.axis, width: width(), ...range }),
      get('run', { run: id }),
    ]);
    state.series.set(id, series);
    state.about.set(id, about);
    drawn.set(id, key);
  }
  drawCharts();
  drawConfig();
}

async function refreshFocus() {
  const { focus } = state;
  const run = state.runs[focus];
  if (!run) return;
  if (!state.about.has(focus)) state.about.set(focus, await get('run', { run: focus }));
  drawTiles();
  drawRanks();
  const isOther =
    events.run !== focus ||
    ['texts', 'lines', 'notices'].some((kind) => run[kind] < events[kind].length);
  if (isOther) Object.assign(events, { run: focus, texts: [], lines: [], notices: [] });
  const next = (kind) => (events[kind].at(-1)?.number ?? -1) + 1;
  const isNew = ['texts', 'lines', 'notices'].some((kind) => next(kind) < run[kind]);
  if (isNew) {
    const found = await get('events', {
      run: focus,
      texts: next('texts'),
      lines: next('lines'),
      notices: next('notices'),
    });
    for (const kind of ['texts', 'lines', 'notices'])
      events[kind] = [...events[kind], ...found[kind]].slice(-4000);
  }
  if (isNew || isOther) {
    drawNotices();
    drawLines();
    drawTexts();
  }
}

function drawCharts() {
  const all = specs();
  const start = performance.now();
  for (const spec of all) {
    let chart = charts.get(spec.id);
    if (!chart) {
      chart = new Chart(spec, zoom);
      charts.set(spec.id, chart);
      byId('charts').append(chart.root);
    }
    chart.draw(linesOf(spec));
  }
  for (const [id, chart] of charts) {
    if (!all.some((spec) => spec.id === id)) chart.root.hidden = true;
  }
  // uPlot draws in microtasks, which run before this one.
  queueMicrotask(() => {
    document.body.dataset.drawMs = (performance.now() - start).toFixed(1);
  });
}

/** Sets the range of all charts; drawings change at once, exact points follow. */
function zoom(range) {
  state.range = range;
  drawCharts();
  void refresh();
}

function bounds() {
  const shown = [...charts.values()].find(({ plot, root }) => plot && !root.hidden);
  const { min, max } = shown?.plot.scales.x ?? { min: 0, max: 1 };
  return [min, max];
}

const ZOOMS = {
  in: () => scaled(bounds(), 0.5),
  out: () => scaled(bounds(), 2),
  left: () => moved(bounds(), -0.25),
  right: () => moved(bounds(), 0.25),
  all: () => null,
};

function bindControls() {
  for (const input of document.querySelectorAll('input[name=axis]')) {
    input.addEventListener('change', () => {
      state.axis = input.value;
      state.series.clear();
      zoom(null);
    });
  }
  byId('smoothing').addEventListener('input', ({ target }) => {
    state.smoothing = Number(target.value);
    byId('smoothing-value').textContent = target.value;
    drawCharts();
  });
  byId('log').addEventListener('change', ({ target }) => {
    state.log = target.checked;
    drawCharts();
  });
  for (const button of document.querySelectorAll('[data-zoom]')) {
    button.addEventListener('click', () => zoom(ZOOMS[button.dataset.zoom]()));
  }
  byId('text-step').addEventListener('input', () => drawTexts(true));
  byId('config-filter').addEventListener('input', drawConfig);
  byId('config-differ').addEventListener('change', drawConfig);
  document.addEventListener('visibilitychange', () => void refresh());
  let resizing = 0;
  addEventListener('resize', () => {
    cancelAnimationFrame(resizing);
    resizing = requestAnimationFrame(() => {
      for (const chart of charts.values()) chart.resize();
    });
  });
}

/** The theme of the system, or a chosen one that this browser keeps. */
function bindTheme() {
  const select = byId('theme');
  const dark = matchMedia('(prefers-color-scheme: dark)');
  const apply = () => {
    const system = dark.matches ? 'dark' : 'light';
    document.documentElement.dataset.theme = select.value === 'auto' ? system : select.value;
    drawRuns(changeRun);
    drawCharts();
    for (const chart of charts.values()) chart.restyle();
  };
  select.value = stored('ds-watch-theme') ?? 'auto';
  select.addEventListener('change', () => {
    store('ds-watch-theme', select.value);
    apply();
  });
  dark.addEventListener('change', apply);
  apply();
}

function stored(name) {
  try {
    return localStorage.getItem(name);
  } catch {
    return null; // The browser keeps nothing for this page.
  }
}

function store(name, value) {
  try {
    localStorage.setItem(name, value);
  } catch {
    // The theme lasts as long as the page.
  }
}

addEventListener('hashchange', () => void refresh());
bindControls();
bindTheme();
void refresh();
