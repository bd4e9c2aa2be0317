// Writes calls in the text of each family, as its models do.
import type { CallFamilyName } from '../../../lib/text/tool-calls/families.js';

type Json = null | boolean | number | string | Json[] | { [key: string]: Json };
export type Arguments = Record<string, Json>;
export interface Call {
  name: string;
  arguments: Arguments;
}
export type Draw = () => number;

const pick = <T>(draw: Draw, list: readonly T[]): T => list[Math.floor(draw() * list.length)] as T;

const TEXTS = [
  ...['', 'x', 'Paris', 'a "quoted" {brace} [list]', 'line\nbreak', 'tab\tend', 'back\\slash\\'],
  ...['</parameter>', '</tool_call>', 'a; b', '}]', "it's", 'é😀漢', '<tool_call>', '<|', '</'],
  ...['{"name": "f"}', '  spaces  ', 'null', 'true', '12', '[1, 2]'],
];

function someValue(draw: Draw, levels: number): Json {
  const kind = draw();
  if (kind < 0.45) return pick(draw, TEXTS);
  if (kind < 0.6) return pick(draw, [0, 1, -7, 3.25, 1e21]);
  if (kind < 0.75 || levels === 0) return pick(draw, [true, false, null]);
  if (kind < 0.88) return Array.from({ length: draw() * 3 }, () => someValue(draw, levels - 1));
  return argumentsOf(draw, levels - 1);
}

const KEYS = ['city', 'unit', 'n', 'flag', 'items', 'code'];

export function argumentsOf(draw: Draw, levels = 2): Arguments {
  const keys = KEYS.filter(() => draw() < 0.4);
  return Object.fromEntries(keys.map((key) => [key, someValue(draw, levels)]));
}

export const NAMES = ['get_weather', 'add', 'search.web', 'list-items'];

export const callsOf = (draw: Draw, names: readonly string[] = NAMES): Call[] =>
  Array.from({ length: 1 + Math.floor(draw() * 3) }, () => ({
    name: pick(draw, names),
    arguments: argumentsOf(draw),
  }));

const json = (call: Call, key = 'arguments') =>
  JSON.stringify({ name: call.name, [key]: call.arguments });

/** Python's literals. */
function python(value: Json): string {
  if (value === null) return 'None';
  if (typeof value === 'boolean') return value ? 'True' : 'False';
  if (typeof value === 'string') return JSON.stringify(value);
  if (typeof value === 'number') return String(value);
  if (Array.isArray(value)) return `[${value.map(python).join(', ')}]`;
  return `{${Object.entries(value)
    .map(([key, one]) => `'${key}': ${python(one)}`)
    .join(', ')}}`;
}

function gemma(value: Json, quote: string): string {
  if (typeof value === 'string') return `${quote}${value}${quote}`;
  if (Array.isArray(value)) return `[${value.map((item) => gemma(item, quote)).join(',')}]`;
  if (typeof value === 'object' && value !== null) {
    const entries = Object.entries(value).map(([key, one]) => `${key}:${gemma(one, quote)}`);
    return `{${entries.join(',')}}`;
  }
  return String(value);
}

/** Strings raw, other values as JSON. */
const raw = (value: Json): string => (typeof value === 'string' ? value : JSON.stringify(value));

export interface Written {
  text: string;
  /** Whether content may stand before the calls. */
  hasContent: boolean;
}

/** By family and form: the text of calls. */
export const WRITERS: Readonly<
  Record<string, { family: CallFamilyName; write: (calls: readonly Call[]) => string; bare?: true }>
> = {
  hermes: {
    family: 'hermes',
    write: (calls) => calls.map((call) => `<tool_call>\n${json(call)}\n</tool_call>`).join('\n'),
  },
  'hermes, no last end tag': {
    family: 'hermes',
    write: (calls) =>
      `<tool_call>\n${calls.map((call) => json(call)).join('\n</tool_call>\n<tool_call>\n')}`,
  },
  'qwen3-coder': {
    family: 'qwen3-coder',
    write: (calls) =>
      calls
        .map(({ name, arguments: own }) => {
          const fields = Object.entries(own).map(
            ([key, value]) => `<parameter=${key}>\n${raw(value)}\n</parameter>\n`,
          );
          return `<tool_call>\n<function=${name}>\n${fields.join('')}</function>\n</tool_call>`;
        })
        .join('\n'),
  },
  llama: {
    family: 'llama',
    write: (calls) => calls.map((call) => json(call, 'parameters')).join('; '),
    bare: true,
  },
  'llama, tagged': {
    family: 'llama',
    write: (calls) => `<|python_tag|>${calls.map((call) => json(call, 'parameters')).join('; ')}`,
  },
  'llama, Python': {
    family: 'llama',
    write: (calls) =>
      `[${calls
        .map(({ name, arguments: own }) => {
          const fields = Object.entries(own).map(([key, value]) => `${key}=${python(value)}`);
          return `${name}(${fields.join(', ')})`;
        })
        .join(', ')}]`,
    bare: true,
  },
  'mistral, a list': {
    family: 'mistral',
    write: (calls) => `[TOOL_CALLS][${calls.map((call) => json(call)).join(', ')}]`,
  },
  'mistral, with [ARGS]': {
    family: 'mistral',
    write: (calls) =>
      calls
        .map((call) => `[TOOL_CALLS]${call.name}[ARGS]${JSON.stringify(call.arguments)}`)
        .join(''),
  },
  phi: {
    family: 'phi',
    write: (calls) => `functools[${calls.map((call) => json(call)).join(', ')}]`,
  },
  'deepseek V3': {
    family: 'deepseek',
    write: (calls) =>
      `<｜tool▁calls▁begin｜>${calls
        .map(
          (call) =>
            `<｜tool▁call▁begin｜>function<｜tool▁sep｜>${call.name}\n\`\`\`json\n${JSON.stringify(call.arguments)}\n\`\`\`<｜tool▁call▁end｜>`,
        )
        .join('\n')}<｜tool▁calls▁end｜>`,
  },
  'deepseek V3.1': {
    family: 'deepseek',
    write: (calls) =>
      `<｜tool▁calls▁begin｜>${calls
        .map(
          (call) =>
            `<｜tool▁call▁begin｜>${call.name}<｜tool▁sep｜>${JSON.stringify(call.arguments)}<｜tool▁call▁end｜>`,
        )
        .join('')}<｜tool▁calls▁end｜>`,
  },
  'gpt-oss': {
    family: 'gpt-oss',
    write: (calls) =>
      calls
        .map(
          (call, i) =>
            `${i > 0 ? '<|start|>assistant' : ''}<|channel|>commentary to=functions.${call.name} <|constrain|>json<|message|>${JSON.stringify(call.arguments)}<|call|>`,
        )
        .join(''),
    bare: true,
  },
  'gpt-oss, recipient in the role': {
    family: 'gpt-oss',
    write: (calls) =>
      calls
        .map(
          (call) =>
            `<|start|>assistant to=functions.${call.name}<|channel|>commentary json<|message|>${JSON.stringify(call.arguments)}<|call|>`,
        )
        .join(''),
    bare: true,
  },
  'glm 4.5': { family: 'glm', write: (calls) => calls.map((call) => glm(call, '\n')).join('\n') },
  'glm 4.7': { family: 'glm', write: (calls) => calls.map((call) => glm(call, '')).join('') },
  'function-gemma': {
    family: 'function-gemma',
    write: (calls) =>
      calls
        .map(
          (call) =>
            `<start_function_call>call:${call.name}${gemma(call.arguments, '<escape>')}<end_function_call>`,
        )
        .join(''),
  },
  gemma: {
    family: 'gemma',
    write: (calls) =>
      calls
        .map((call) => `<|tool_call>call:${call.name}${gemma(call.arguments, '<|"|>')}<tool_call|>`)
        .join(''),
  },
};

function glm({ name, arguments: own }: Call, line: string): string {
  const fields = Object.entries(own).map(
    ([key, value]) => `<arg_key>${key}</arg_key>${line}<arg_value>${raw(value)}</arg_value>${line}`,
  );
  return `<tool_call>${name}${line}${fields.join('')}</tool_call>`;
}

/** The schema of each parameter by the value, so that raw texts get their type back. */
export function schemaFor(calls: readonly Call[], name: string): object {
  const all = calls.filter((call) => call.name === name).map((call) => call.arguments);
  const keys = KEYS.filter((key) =>
    all.some((localArguments) => Object.hasOwn(localArguments, key)),
  );
  return {
    type: 'object',
    properties: Object.fromEntries(
      keys.map((key) => {
        const values = all
          .filter((localArguments) => Object.hasOwn(localArguments, key))
          .map((localArguments) => localArguments[key]);
        return [
          key,
          { type: values.some((value) => typeof value === 'string') ? 'string' : 'object' },
        ];
      }),
    ),
  };
}
