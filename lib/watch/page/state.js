// What the page shows: runs, axis, range and smoothing.

export const state = {
  /** Summaries of the server, in its order. */
  runs: [],
  /** Numbers of the runs that are drawn. */
  shown: new Set(),
  /** The run of tiles and panels. */
  focus: 0,
  axis: 'step',
  /** [from, to] on the axis; null: everything. Times are seconds since the run began. */
  range: null,
  smoothing: 0.6,
  log: false,
  /** By run: series of the server, and facts. */
  series: new Map(),
  about: new Map(),
};

/** Colors of runs and series repeat after so many. */
export const COLORS = 8;

/** The end of the folder's path that no other run has. */
export function runName(id) {
  const parts = state.runs[id]?.name.split('/') ?? [];
  const others = state.runs.filter((_, other) => other !== id).map(({ name }) => `/${name}`);
  for (let count = 1; count < parts.length; count++) {
    const end = parts.slice(-count).join('/');
    if (!others.some((name) => name.endsWith(`/${end}`))) return end;
  }
  return parts.join('/');
}

/** x values of a track's points on the axis. */
export function placesOf(id, { step, time }) {
  if (state.axis === 'step') return step;
  const { began } = state.runs[id];
  return time.map((one) => (one - began) / 1000);
}

/** The range on the server's axis. */
export function rangeOf(id) {
  if (!state.range) return {};
  const [from, to] = state.range;
  if (state.axis === 'step') return { from, to };
  const { began } = state.runs[id];
  return { from: began + 1000 * from, to: began + 1000 * to };
}

/** Exponential moving average, with the correction of its start; gaps stay. */
export function smoothed(values, weight) {
  if (weight === 0) return values;
  let [sum, mass] = [0, 0];
  return values.map((value) => {
    if (value === null) return null;
    sum = sum * weight + value * (1 - weight);
    mass = mass * weight + (1 - weight);
    return sum / mass;
  });
}
