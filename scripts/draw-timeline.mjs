// Draws one step of a trace as an SVG file: node scripts/draw-timeline.mjs TRACE.json OUT.svg
// [STEP]
import { readFileSync, writeFileSync } from 'node:fs';

const WIDTH = 1000;
const NAMES = 190;
/** More room at the left, for the longest name of a lane. */
const LEFT = 30;
const ROW = 18;
const GAP = 6;
const HEAD = 50;
const FOOT = 30;
/** Colors by category; phases and updates have colors by their name. */
const COLORS = {
  forward: '#4c9be8',
  backward: '#e8884c',
  reduce: '#b05fc9',
  step: '#55a868',
  op: '#7a8ca3',
  update: '#2f7d4f',
  copy: '#c9a227',
  collective: '#b05fc9',
  disk: '#a05a4a',
  wait: '#c8ccd2',
};
const LEGEND = {
  forward: 'forward',
  backward: 'backward',
  step: 'step',
  op: 'ops',
  update: 'updates by host threads',
  copy: 'copies',
  collective: 'between ranks',
  disk: 'disk',
  wait: 'JavaScript waits',
};

const escaped = (text) => text.replace(/&/g, '&amp;').replace(/</g, '&lt;');

function colorOf({ cat, name, process }) {
  if (cat === 'phase') return name;
  return process === 'host threads' && cat === 'op' ? 'update' : cat;
}

/** The spans of one step by lane, in the order of the file's lanes; times from the step's start. */
function lanesOf({ traceEvents }, wanted) {
  const names = new Map();
  for (const { ph, name, pid, tid, args } of traceEvents) {
    if (ph === 'M' && name === 'process_name') names.set(`${pid}`, args.name);
    if (ph === 'M' && name === 'thread_name') names.set(`${pid}/${tid}`, args.name);
  }
  const spans = traceEvents.filter(({ ph }) => ph === 'X');
  const steps = spans.filter(({ cat }) => cat === 'step').filter(({ pid }) => pid % 10 === 1);
  const step = wanted ? steps.find(({ name }) => name === `step ${wanted}`) : steps.at(-1);
  if (!step) throw new Error(`no step ${wanted ?? ''} in the trace: ${steps.map((s) => s.name)}`);
  const lanes = new Map();
  for (const span of spans) {
    const [from, to] = [span.ts - step.ts, span.ts + span.dur - step.ts];
    if (span.cat === 'step' || to <= 0 || from >= step.dur) continue;
    const key = `${span.pid}/${span.tid}`;
    const process = names.get(`${span.pid}`);
    // Concurrent transfers have several lanes in the file, and one row here.
    const title = `${process}: ${names.get(key).replace(/ \d+$/, '')}`;
    if (!lanes.has(title)) lanes.set(title, { title, key, bars: [] });
    const color = colorOf({ ...span, process });
    lanes.get(title).bars.push({ from: Math.max(0, from), to: Math.min(to, step.dur), color });
  }
  const order = (key) => key.split('/').reduce((sum, part) => 1000 * sum + Number(part), 0);
  const ordered = [...lanes.values()].sort((a, b) => order(a.key) - order(b.key));
  return { step, lanes: ordered };
}

/** Bars in pixels, neighbours of one color closer than half a pixel drawn as one. */
function rects(bars, y, scale) {
  const drawn = [];
  for (const { from, to, color } of bars) {
    const [x, end] = [NAMES + from * scale, NAMES + to * scale];
    const last = drawn.at(-1);
    if (last && last.color === color && x - last.end < 0.5) last.end = Math.max(last.end, end);
    else drawn.push({ x, end, color });
  }
  return drawn.map(({ x, end, color }) => {
    const [left, wide] = [x.toFixed(1), Math.max(0.3, end - x).toFixed(1)];
    return `<rect x="${left}" y="${y}" width="${wide}" height="${ROW}" fill="${COLORS[color]}"/>`;
  });
}

/** 1, 2 or 5 times a power of ten, so that about ten ticks fit. */
function tickOf(total) {
  const rough = total / 10;
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((factor) => factor * power).find((tick) => tick >= rough);
}

function axis(total, scale, bottom) {
  const tick = tickOf(total);
  const lines = [];
  for (let at = 0; at <= total; at += tick) {
    const x = (NAMES + at * scale).toFixed(1);
    const ms = Number((at / 1000).toPrecision(3));
    lines.push(`<path d="M${x} ${HEAD}V${bottom}" stroke="#d8dbe0"/>`);
    lines.push(`<text x="${x}" y="${HEAD - 6}" text-anchor="middle">${ms} ms</text>`);
  }
  return lines;
}

function legend(used, y) {
  let x = NAMES;
  return Object.entries(LEGEND)
    .filter(([color]) => used.has(color))
    .flatMap(([color, text]) => {
      const at = x;
      x += 24 + 6.5 * text.length;
      return [
        `<rect x="${at}" y="${y}" width="10" height="10" fill="${COLORS[color]}"/>`,
        `<text x="${at + 14}" y="${y + 9}">${text}</text>`,
      ];
    });
}

function draw(trace, wanted) {
  const { step, lanes } = lanesOf(trace, wanted);
  const scale = (WIDTH - NAMES - 20) / step.dur;
  const bottom = HEAD + lanes.length * (ROW + GAP);
  const rows = lanes.flatMap(({ title, bars }, i) => {
    const y = HEAD + i * (ROW + GAP) + GAP / 2;
    const text = `<text x="${NAMES - 8}" y="${y + 13}" text-anchor="end">${escaped(title)}</text>`;
    return [text, ...rects(bars, y, scale)];
  });
  const used = new Set(lanes.flatMap(({ bars }) => bars.map(({ color }) => color)));
  const title = `${step.name}, ${(step.dur / 1000).toFixed(1)} ms, ${trace.otherData.device}`;
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="${-LEFT} 0 ${WIDTH + LEFT} ${bottom + FOOT}" font-family="sans-serif" font-size="11" fill="#24292f">`,
    `<title>${escaped(title)}</title>`,
    `<rect x="${-LEFT}" width="100%" height="100%" fill="#ffffff"/>`,
    `<text x="8" y="${HEAD - 28}" font-size="13">${escaped(title)}</text>`,
    ...axis(step.dur, scale, bottom),
    ...rows,
    ...legend(used, bottom + 10),
    '</svg>',
    '',
  ].join('\n');
}

const [from, to, step] = process.argv.slice(2);
if (!from || !to) {
  console.error('usage: node scripts/draw-timeline.mjs TRACE.json OUT.svg [STEP]');
  process.exit(2);
}
writeFileSync(to, draw(JSON.parse(readFileSync(from, 'utf8')), step));
