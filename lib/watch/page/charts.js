// Which numbers are drawn in which chart.
import { bytes, color, compact, milliseconds, percent, short, whole } from './dom.js';
import { COLORS, placesOf, runName, smoothed, state } from './state.js';

const perSecond = (value) =>
  value === null ? '–' : `${value < 100 ? short(value) : whole(value)}/s`;

/** Charts in their order; `columns`: [track, column, label]. */
const SPECS = [
  {
    id: 'loss',
    title: 'Loss',
    canLog: true,
    smooth: true,
    columns: [['train', 'loss', '']],
    extra: evalLoss,
  },
  { id: 'lr', title: 'Learning rate', columns: [['train', 'lr', '']] },
  {
    id: 'grad_norm',
    title: 'Gradient norm',
    columns: [['train', 'grad_norm', '']],
    extra: clipLine,
  },
  {
    id: 'tokens',
    title: 'Tokens per second',
    format: perSecond,
    tick: compact,
    columns: [['speed', 'tokens_per_second', '']],
  },
  {
    id: 'samples',
    title: 'Samples per second',
    format: perSecond,
    tick: compact,
    columns: [['train', 'samples_per_second', '']],
  },
  { id: 'mfu', title: 'Model FLOPs utilization', format: percent, columns: [['speed', 'mfu', '']] },
  { id: 'step_ms', title: 'Step time', format: milliseconds, columns: [['train', 'step_ms', '']] },
  {
    id: 'phases',
    title: 'Time by phase',
    format: milliseconds,
    columns: [
      ['phases', 'forward', 'forward'],
      ['phases', 'backward', 'backward'],
      ['phases', 'reduce', 'reduce'],
      ['phases', 'step', 'step'],
    ],
  },
  {
    id: 'device_memory',
    title: 'Device memory by owner',
    format: bytes,
    columns: [
      ['memory', 'device_peak', 'peak'],
      ['memory', 'device_weights', 'weights'],
      ['memory', 'device_gradients', 'gradients'],
      ['memory', 'device_optimizer', 'optimizer'],
      ['memory', 'device_other', 'activations, other'],
    ],
  },
  {
    id: 'host_memory',
    title: 'Host memory and disk',
    format: bytes,
    columns: [
      ['memory', 'host_resident', 'process'],
      ['memory', 'host_pinned', 'page-locked'],
      ['memory', 'disk', 'optimizer on disk'],
    ],
  },
  { id: 'loss_scale', title: 'Loss scale', columns: [['train', 'loss_scale', '']] },
  { id: 'skipped', title: 'Skipped steps', format: whole, columns: [['train', 'skipped', '']] },
];

/** Columns without a chart of their own. */
const HIDDEN = new Set(['eval loss', 'speed tokens', 'train samples']);

/** The charts of the runs that are shown, with one for each unknown column. */
export function specs() {
  const known = new Set(
    SPECS.flatMap(({ columns }) => columns.map(([track, name]) => `${track} ${name}`)),
  );
  const others = new Map();
  for (const id of state.shown) {
    for (const [track, { columns }] of Object.entries(state.series.get(id) ?? {})) {
      for (const name of Object.keys(columns)) {
        const key = `${track} ${name}`;
        if (known.has(key) || HIDDEN.has(key)) continue;
        const title = track === 'eval' ? `Validation ${name}` : name;
        others.set(key, { id: `own-${track}-${name}`, title, columns: [[track, name, '']] });
      }
    }
  }
  return [...SPECS, ...[...others.values()].sort((a, b) => a.title.localeCompare(b.title))];
}

/** Color of a run; of a series if only one run is drawn. */
export const runColor = (id) => color(`--run${id % COLORS}`);

const DASHES = [undefined, [6, 4], [2, 3], [10, 4, 2, 4], [1, 5]];

/** The lines of a chart. */
export function linesOf({ columns, smooth = false, extra }) {
  const ids = [...state.shown].sort((a, b) => a - b);
  const isAlone = ids.length === 1;
  return ids.flatMap((id) => {
    const tracks = state.series.get(id);
    if (!tracks) return [];
    const places = placesIn(id, tracks);
    const lines = columns.flatMap(([track, column, label], i) => {
      const points = tracks[track]?.columns[column];
      if (!points || isConstantZero(column, points)) return [];
      const name = [isAlone && label ? '' : runName(id), label].filter(Boolean).join(' ');
      const style = {
        color: isAlone && columns.length > 1 ? color(`--run${i % COLORS}`) : runColor(id),
        dash: isAlone ? undefined : DASHES[i % DASHES.length],
      };
      const raw = {
        label: name,
        ...style,
        x: places(track),
        y: points.mean,
        min: points.min,
        max: points.max,
      };
      if (!smooth || state.smoothing === 0) return [{ ...raw, points: raw.y.length < 3 }];
      const soft = smoothed(points.mean, state.smoothing);
      return [
        { ...raw, label: `${name} raw`, faint: true, isHidden: true },
        { label: name, ...style, x: raw.x, y: soft, isDerived: true, points: soft.length < 3 },
      ];
    });
    return [...lines, ...(lines.length > 0 ? (extra?.(id, tracks, places) ?? []) : [])];
  });
}

/** x values by track; one array for each, so that its lines share a table. */
function placesIn(id, tracks) {
  const made = new Map();
  return (track) => {
    if (!made.has(track)) made.set(track, placesOf(id, tracks[track]));
    return made.get(track);
  };
}

/** Disk and page-locked memory that are not used need no line. */
const MAY_BE_ZERO = new Set(['disk', 'host_pinned', 'reduce']);
const isConstantZero = (column, { mean }) =>
  MAY_BE_ZERO.has(column) && mean.every((value) => value === null || value === 0);

function evalLoss(id, tracks, places) {
  const points = tracks.eval?.columns.loss;
  if (!points) return [];
  const isAlone = state.shown.size === 1;
  const label = isAlone ? 'validation' : `${runName(id)} validation`;
  const stroke = isAlone ? color('--run1') : runColor(id);
  return [{ label, color: stroke, dash: [6, 4], x: places('eval'), y: points.mean, points: true }];
}

/** The limit of gradient_clipping. */
function clipLine(id, _tracks, places) {
  const limit = state.about.get(id)?.config?.gradient_clipping;
  if (typeof limit !== 'number' || limit <= 0) return [];
  const x = places('train');
  const label = state.shown.size === 1 ? 'clipping limit' : `${runName(id)} limit`;
  return [
    { label, color: color('--quiet'), dash: [3, 4], x, y: x.map(() => limit), isDerived: true },
  ];
}
