// Elements and formatted values. Texts of runs become text nodes only, never markup.

/** Returns the element with this id. */
export const byId = (id) => document.getElementById(id);

/** Returns a new element; children are elements and texts. */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === 'class') made.className = value;
    else if (name.startsWith('on')) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, '');
    else if (value !== false && value !== null) made.setAttribute(name, String(value));
  }
  made.append(...children.map((child) => (child instanceof Node ? child : String(child))));
  return made;
}

/** "12,345" */
export const whole = (value) => Math.round(value).toLocaleString('en');

/** Four digits: "2.303", "1.2e-5", "12,345". */
export function short(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return '–';
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(2);
  if (size >= 1e4) return whole(value);
  return String(Number(value.toPrecision(4)));
}

/** For axes: "310k", "4.5M". */
export function compact(value) {
  const size = Math.abs(value);
  if (size >= 1e9) return `${Number((value / 1e9).toPrecision(4))}G`;
  if (size >= 1e6) return `${Number((value / 1e6).toPrecision(4))}M`;
  return size >= 1e4 ? `${Number((value / 1e3).toPrecision(4))}k` : short(value);
}

export const percent = (value) =>
  value === null || value === undefined ? '–' : `${(100 * value).toFixed(1)} %`;

const UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];

/** "1.25 GiB" */
export function bytes(value) {
  if (value === null || value === undefined) return '–';
  let [rest, unit] = [value, 0];
  while (Math.abs(rest) >= 1024 && unit < UNITS.length - 1) [rest, unit] = [rest / 1024, unit + 1];
  return `${Number(rest.toPrecision(3))} ${UNITS[unit]}`;
}

export const milliseconds = (value) =>
  value === null || value === undefined ? '–' : `${short(value)} ms`;

/** "2 h 5 min", "3 min 20 s", "12.5 s" */
export function duration(seconds) {
  if (!Number.isFinite(seconds)) return '–';
  const sign = seconds < 0 ? '−' : '';
  const all = Math.abs(seconds);
  if (all < 60) return `${sign}${Number(all.toPrecision(3))} s`;
  const minutes = Math.floor(all / 60);
  if (all < 3600) return `${sign}${minutes} min ${Math.floor(all % 60)} s`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${sign}${hours} h ${minutes % 60} min`;
  return `${sign}${Math.floor(hours / 24)} d ${hours % 24} h`;
}

/** "14:05:09", with the date unless it is today. */
export function clock(time) {
  const date = new Date(time);
  const today = new Date().toDateString() === date.toDateString();
  return today ? date.toLocaleTimeString() : date.toLocaleString();
}

/** Value of a variable of style.css. */
export const color = (name) =>
  getComputedStyle(document.documentElement).getPropertyValue(name).trim();
