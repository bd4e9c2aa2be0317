// datetime.now().strftime() in the locale "C".
import { required } from '../../runtime/required.js';

const DAYS = ['Sunday', 'Monday', 'Tuesday', 'Wednesday', 'Thursday', 'Friday', 'Saturday'];
const MONTHS = [
  'January',
  'February',
  'March',
  'April',
  'May',
  'June',
  'July',
  'August',
  'September',
  'October',
  'November',
  'December',
];

const DAY = 86_400_000;

/** Returns the days since January 1. */
function dayOfYear(now: Date): number {
  const start = Date.UTC(now.getFullYear(), 0, 1);
  return Math.round((Date.UTC(now.getFullYear(), now.getMonth(), now.getDate()) - start) / DAY);
}

/** Returns the weeks that have started this year, if weeks start at the day `first`. */
const countWeeks = (now: Date, first: number): number =>
  Math.floor((dayOfYear(now) + 7 - ((now.getDay() - first + 7) % 7)) / 7);

/** Returns the year and week of ISO 8601, which the week's Thursday determines. */
function isoWeek(now: Date): { year: number; week: number } {
  const thursday = new Date(now.getFullYear(), now.getMonth(), now.getDate());
  thursday.setDate(thursday.getDate() + 4 - (thursday.getDay() || 7));
  return { year: thursday.getFullYear(), week: Math.floor(dayOfYear(thursday) / 7) + 1 };
}

type DatePart = number | string;
const hourOf12 = (now: Date): number => now.getHours() % 12 || 12;

/** A value, and the width and fill of a number. */
const PARTS: Readonly<Record<string, (now: Date) => readonly [DatePart, number?, string?]>> = {
  A: (now) => [required(DAYS[now.getDay()])],
  a: (now) => [required(DAYS[now.getDay()]).slice(0, 3)],
  B: (now) => [required(MONTHS[now.getMonth()])],
  b: (now) => [required(MONTHS[now.getMonth()]).slice(0, 3)],
  h: (now) => [required(MONTHS[now.getMonth()]).slice(0, 3)],
  C: (now) => [Math.floor(now.getFullYear() / 100), 2],
  c: (now) => [strftime(now, '%a %b %e %H:%M:%S %Y')],
  D: (now) => [strftime(now, '%m/%d/%y')],
  d: (now) => [now.getDate(), 2],
  e: (now) => [now.getDate(), 2, ' '],
  F: (now) => [strftime(now, '%Y-%m-%d')],
  f: (now) => [now.getMilliseconds() * 1000, 6],
  G: (now) => [isoWeek(now).year],
  g: (now) => [isoWeek(now).year % 100, 2],
  H: (now) => [now.getHours(), 2],
  I: (now) => [hourOf12(now), 2],
  j: (now) => [dayOfYear(now) + 1, 3],
  k: (now) => [now.getHours(), 2, ' '],
  l: (now) => [hourOf12(now), 2, ' '],
  M: (now) => [now.getMinutes(), 2],
  m: (now) => [now.getMonth() + 1, 2],
  n: () => ['\n'],
  P: (now) => [now.getHours() < 12 ? 'am' : 'pm'],
  p: (now) => [now.getHours() < 12 ? 'AM' : 'PM'],
  R: (now) => [strftime(now, '%H:%M')],
  r: (now) => [strftime(now, '%I:%M:%S %p')],
  S: (now) => [now.getSeconds(), 2],
  s: (now) => [Math.floor(now.getTime() / 1000)],
  T: (now) => [strftime(now, '%H:%M:%S')],
  t: () => ['\t'],
  U: (now) => [countWeeks(now, 0), 2],
  u: (now) => [now.getDay() || 7],
  V: (now) => [isoWeek(now).week, 2],
  W: (now) => [countWeeks(now, 1), 2],
  w: (now) => [now.getDay()],
  X: (now) => [strftime(now, '%H:%M:%S')],
  x: (now) => [strftime(now, '%m/%d/%y')],
  Y: (now) => [now.getFullYear()],
  y: (now) => [now.getFullYear() % 100, 2],
  // Empty: datetime.now() has no time zone.
  Z: () => [''],
  z: () => [''],
  '%': () => ['%'],
};

/** Formats a date. Supports glibc's flags: "-" no fill, "_" blanks, "0" zeros, "^" capitals. */
export function strftime(now: Date, format: string): string {
  return format.replace(/%([-_0^#]?)([A-Za-z%])/g, (whole, flag: string, letter: string) => {
    const part = PARTS[letter]?.(now);
    if (part === undefined) return whole;
    const [value, width = 0, fill = '0'] = part;
    const padding = flag === '_' ? ' ' : flag === '0' ? '0' : fill;
    const text = flag === '-' ? String(value) : String(value).padStart(width, padding);
    return flag === '^' ? text.toUpperCase() : text;
  });
}
