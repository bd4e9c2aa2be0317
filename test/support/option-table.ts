// Tables of pages about declared options.
import { defaultText, type Option } from '../../lib/runtime/option.js';

type Declared = Readonly<Record<string, Option<unknown, unknown>>>;

/** A default in a cell: texts and switches are code. */
function cellOf(option: Option<unknown, unknown>): string {
  if (option.required) return 'required';
  const isOff = option.syntax === 'switch' && option.flag?.startsWith('-');
  const text = defaultText(option) ?? (isOff ? 'off' : 'none');
  const { shown, default: value } = option;
  const isCode = typeof value === 'string' || typeof value === 'boolean';
  return shown === undefined && isCode ? `\`${text}\`` : text;
}

/** Other names: those that the option states, or the argument that sets it. */
function namesOf({ elsewhere, flag }: Option<unknown, unknown>): string {
  return elsewhere ?? (flag === undefined ? '' : `\`${flag}\``);
}

/** Rows of a table: name, default, effect. */
export const shortRows = (declared: Declared): string[] =>
  Object.entries(declared).map(
    ([name, option]) => `| \`${name}\` | ${cellOf(option)} | ${option.help} |`,
  );

/** Rows of a table: flag of a command, default, effect; without options that have no flag. */
export const flagRows = (declared: Declared): string[] =>
  Object.values(declared).flatMap((option) => {
    const { flag, help, values = [] } = option;
    // The help of the command has long lists.
    const list = values.length > 4 ? '' : values.map((value) => `\`${value}\``).join(', ');
    const effect = list === '' ? help : `${help} (${list})`;
    // Units such as GB/s stay.
    const usage = flag?.replace(/[<[][^>\]]+[>\]]/, (value) =>
      (value.includes('/') ? value : value.toUpperCase()).replace(/[<>]/g, ''),
    );
    return usage === undefined ? [] : [`| \`${usage}\` | ${cellOf(option)} | ${effect} |`];
  });

/** Rows of a table: name, default, effect, name elsewhere. */
export const optionRows = (declared: Declared, prefix = ''): string[] =>
  Object.entries(declared).map(([name, option]) => {
    const cells = [`\`${prefix}${name}\``, cellOf(option), option.help, namesOf(option)];
    return `| ${cells.join(' | ')} |`.replaceAll('|  |', '| |');
  });

/** The rows of the table of `page` whose first heading is `heading`. */
export function tableRows(page: string, heading: string): string[] {
  const lines = page.split('\n');
  const start = lines.findIndex((line) => line.startsWith(`| ${heading} |`));
  const rest = lines.slice(start + 2);
  return rest.slice(
    0,
    rest.findIndex((line) => !line.startsWith('|')),
  );
}
