// ajv with the formats of grammars, checked by other means than patterns where possible.
import { isIPv4 } from 'node:net';
import Ajv2020 from 'ajv/dist/2020.js';

const isDate = (text: string): boolean => {
  const [, year, month, day] = /^(\d{4})-(\d\d)-(\d\d)$/.exec(text) ?? [];
  const date = new Date(Date.UTC(2000, Number(month) - 1, Number(day)));
  date.setUTCFullYear(Number(year), Number(month) - 1, Number(day));
  return date.getUTCMonth() === Number(month) - 1 && date.getUTCDate() === Number(day);
};
const isTime = (text: string): boolean =>
  !Number.isNaN(Date.parse(`2000-01-01T${text.replace(/(\.\d{3})\d+/, '$1')}`)) &&
  /(Z|[+-]\d\d:\d\d)$/.test(text);

const FORMATS: Record<string, (text: string) => boolean> = {
  date: isDate,
  time: isTime,
  'date-time': (text) => isDate(text.slice(0, 10)) && text[10] === 'T' && isTime(text.slice(11)),
  email: (text) => /^[^@\s"]+@[^@\s.]+(\.[^@\s.]+)+$/.test(text) && !/\.\./.test(text),
  uuid: (text) => /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i.test(text),
  ipv4: (text) => isIPv4(text),
  hostname: (text) =>
    text.length <= 253 &&
    text.split('.').every((label) => /^[a-z\d]([a-z\d-]{0,61}[a-z\d])?$/i.test(label)),
  uri: (text) => URL.canParse(text) || /^https?:\/\/[^/]*xn--/i.test(text),
};

/** Returns the check of a schema. */
export function validator(schema: object | boolean): (value: unknown) => boolean {
  const ajv = new Ajv2020({ strict: false, formats: FORMATS });
  const validate = ajv.compile(schema);
  return (value) => validate(value) === true;
}
