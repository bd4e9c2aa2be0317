// Tiles, runs, ranks, samples, configuration, log and notices.
import { runColor } from './charts.js';
import {
  byId,
  bytes,
  clock,
  duration,
  element,
  milliseconds,
  percent,
  short,
  whole,
} from './dom.js';
import { runName, state } from './state.js';

/** Lines of the log that are drawn. */
const MAX_LINES = 1000;
const STATES = { running: 'running', ended: 'ended', stopped: 'stopped without an end' };

/** Builds the list of runs once a run appears; later it changes texts only, so focus stays. */
export function drawRuns(onChange) {
  const list = byId('runs');
  while (list.children.length > state.runs.length) list.lastChild.remove();
  state.runs.forEach((run, id) => {
    const item = list.children[id] ?? list.appendChild(runItem(id, onChange));
    const [box, name] = [item.querySelector('input'), item.querySelector('.name')];
    box.checked = state.shown.has(id);
    item.style.setProperty('--own', runColor(id));
    if (name.textContent !== runName(id)) name.textContent = runName(id);
    name.title = run.name;
    item.querySelector('.focus').setAttribute('aria-pressed', String(state.focus === id));
    item.querySelector('.state').textContent = stateText(run);
    const bar = item.querySelector('progress');
    bar.hidden = run.steps === null;
    bar.max = run.steps ?? 1;
    bar.value = run.step;
  });
}

function runItem(id, onChange) {
  const box = element('input', { type: 'checkbox', onchange: () => onChange('shown', id) });
  return element(
    'li',
    {},
    element(
      'label',
      {},
      box,
      element('span', { class: 'swatch' }),
      element('span', { class: 'name' }),
    ),
    element(
      'button',
      {
        type: 'button',
        class: 'focus',
        title: 'Show its details below',
        onclick: () => onChange('focus', id),
      },
      'Details',
    ),
    element('span', { class: 'state quiet' }),
    element('progress', { 'aria-label': 'Steps done' }),
  );
}

function stateText({ state: name, reason, step, steps, changed, read, starts }) {
  const of = steps === null ? '' : ` of ${whole(steps)}`;
  const parts = [`step ${whole(step)}${of}`, reason || STATES[name]];
  if (name !== 'ended')
    parts.push(`last event ${duration(Math.max(0, Date.now() - changed) / 1000)} ago`);
  if (starts > 1) parts.push(`${starts} starts`);
  if (read < 0.999) parts.push(`reading ${Math.floor(100 * read)} %`);
  return parts.join(' · ');
}

/** Latest numbers of the run in focus. */
export function drawTiles() {
  const run = state.runs[state.focus];
  const { latest, config } = state.about.get(state.focus) ?? {};
  if (!run || !latest) return;
  const { train, speed, eval: judged, memory } = latest;
  const left = run.steps !== null && train.step_ms && run.state === 'running';
  const tiles = [
    ['Step', run.steps === null ? whole(run.step) : `${whole(run.step)} / ${whole(run.steps)}`],
    ['Loss', short(train.loss)],
    ['Validation loss', judged.loss === undefined ? null : short(judged.loss)],
    ['Learning rate', train.lr === undefined ? null : short(train.lr)],
    ['Gradient norm', train.grad_norm === undefined ? null : short(train.grad_norm)],
    ['Tokens/s', speed.tokens_per_second === undefined ? null : whole(speed.tokens_per_second)],
    ['MFU', speed.mfu === undefined ? null : percent(speed.mfu)],
    ['Step time', train.step_ms === undefined ? null : milliseconds(train.step_ms)],
    ['Time left', left ? duration(((run.steps - run.step) * train.step_ms) / 1000) : null],
    ['Device peak', memory.device_peak === undefined ? null : bytes(memory.device_peak)],
    ['Skipped', config?.fp16?.enabled || train.skipped > 0 ? whole(train.skipped ?? 0) : null],
  ];
  const list = byId('tiles');
  list.replaceChildren(
    ...tiles
      .filter(([, value]) => value !== null)
      .map(([name, value]) =>
        element('div', {}, element('dt', {}, name), element('dd', {}, value)),
      ),
  );
}

export function drawRanks() {
  const ranks = state.about.get(state.focus)?.ranks;
  byId('ranks-card').hidden = !ranks || ranks.busy.length < 2;
  if (!ranks) return;
  const sorted = ranks.busy
    .map((busy, rank) => ({ rank, busy: busy ?? 0 }))
    .sort((a, b) => b.busy - a.busy);
  const median = sorted[Math.floor(sorted.length / 2)].busy;
  const most = sorted[0].busy || 1;
  const items = sorted.map(({ rank, busy }) => {
    const share = median > 0 ? busy / median - 1 : 0;
    const compared =
      Math.abs(share) < 0.005
        ? ''
        : ` · ${share > 0 ? '+' : '−'}${Math.abs(100 * share).toFixed(1)} %`;
    const bar = element('span', { class: share > 0.1 ? 'bar slow' : 'bar' });
    bar.style.width = `${(100 * busy) / most}%`;
    return element(
      'li',
      {},
      element('span', {}, `rank ${rank}`),
      element('span', { class: 'track' }, bar),
      element('b', {}, `${milliseconds(busy)}${compared}`),
    );
  });
  byId('ranks').replaceChildren(...items);
}

/** Texts, lines and notices of the run in focus. */
export const events = { run: -1, texts: [], lines: [], notices: [] };

export function drawNotices() {
  byId('notices-card').hidden = events.notices.length === 0;
  const items = events.notices.map(({ level, message, step, time }) => {
    const place = step === undefined ? clock(time) : `step ${whole(step)}, ${clock(time)}`;
    return element(
      'li',
      { class: level },
      element('b', {}, level),
      ' ',
      element('bdi', {}, message),
      ' ',
      element('span', { class: 'quiet' }, place),
    );
  });
  byId('notices').replaceChildren(...items.reverse());
}

export function drawLines() {
  const list = byId('lines');
  byId('log-card').hidden = events.lines.length === 0;
  const isAtEnd = list.scrollTop + list.clientHeight >= list.scrollHeight - 8;
  const items = events.lines
    .slice(-MAX_LINES)
    .map(({ line, time }) =>
      element(
        'li',
        {},
        element('span', { class: 'quiet' }, `${clock(time)} `),
        element('bdi', {}, line),
      ),
    );
  list.replaceChildren(...items);
  if (isAtEnd) list.scrollTop = list.scrollHeight;
}

/** The samples of the step that the slider selects; the last one follows new samples. */
export function drawTexts(isChosen = false) {
  const { texts } = events;
  byId('texts-card').hidden = texts.length === 0;
  if (texts.length === 0) return;
  const steps = [...new Set(texts.map(({ step }) => step))].sort((a, b) => a - b);
  const slider = byId('text-step');
  const wasLast = Number(slider.value) === Number(slider.max);
  slider.max = steps.length - 1;
  if (!isChosen && wasLast) slider.value = steps.length - 1;
  const step = steps[Number(slider.value)] ?? steps.at(-1);
  byId('text-step-value').textContent = whole(step);
  slider.setAttribute('aria-valuetext', `step ${step}`);
  const items = texts
    .filter((one) => one.step === step)
    .map(({ prompt, text }) =>
      element(
        'blockquote',
        {},
        element('bdi', { class: 'prompt' }, prompt),
        ' ',
        element('bdi', {}, text),
      ),
    );
  byId('texts').replaceChildren(...items);
}

/** "a.b": value, for each leaf. */
function flattened(value, path = '', found = new Map()) {
  const isParent = value !== null && typeof value === 'object' && Object.keys(value).length > 0;
  if (isParent && !Array.isArray(value)) {
    for (const [name, inner] of Object.entries(value))
      flattened(inner, path ? `${path}.${name}` : name, found);
  } else found.set(path, JSON.stringify(value));
  return found;
}

/** Facts and configuration of the runs that are shown, side by side. */
export function drawConfig() {
  const ids = [...new Set([...state.shown])]
    .sort((a, b) => a - b)
    .filter((id) => state.about.has(id));
  const all = ids.map((id) => {
    const { about, config } = state.about.get(id);
    return new Map([...flattened(about, 'run'), ...flattened(config)]);
  });
  const filter = byId('config-filter').value.trim().toLowerCase();
  byId('config-differ-label').hidden = ids.length < 2;
  const isDiffering = ids.length > 1 && byId('config-differ').checked;
  const keys = [...new Set(all.flatMap((one) => [...one.keys()]))].filter((key) => {
    const values = all.map((one) => one.get(key));
    if (isDiffering && values.every((one) => one === values[0])) return false;
    return filter === '' || `${key} ${values.join(' ')}`.toLowerCase().includes(filter);
  });
  const head = element(
    'tr',
    {},
    element('th', { scope: 'col' }, 'key'),
    ...ids.map((id) => element('th', { scope: 'col' }, runName(id))),
  );
  const rows = keys.map((key) =>
    element(
      'tr',
      {},
      element('th', { scope: 'row' }, key),
      ...all.map((one) => element('td', {}, element('bdi', {}, one.get(key) ?? '–'))),
    ),
  );
  byId('config').replaceChildren(
    element('table', {}, element('thead', {}, head), element('tbody', {}, ...rows)),
  );
}
