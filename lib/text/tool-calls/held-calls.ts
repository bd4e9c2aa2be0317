// The text of calls as grammars need it: markers, and JSON by the schemas of functions.
import { isObject } from '../../runtime/is-object.js';
import { callSchema, type FunctionTool } from './call-schema.js';
import { isTextual } from './value-types.js';

/** A call: a text, its JSON or its fields, a text. */
export interface CallForm {
  /** One of these, if it is a list. */
  readonly before: string | readonly string[];
  /** JSON by a schema; absent with `fields`. */
  readonly schema?: object;
  /** Arguments between tags, in this order; null: any arguments. */
  readonly fields?: readonly CallField[] | null;
  readonly after: string;
}

/** An argument between tags. */
export interface CallField {
  readonly name: string;
  readonly schema: object;
  /** Readers take the value as the text of a string; else it is JSON. */
  readonly isText: boolean;
  readonly isRequired: boolean;
}

/** The tags around names and values of arguments. */
export interface FieldTags {
  readonly key: readonly [begin: string, end: string];
  readonly value: readonly [begin: string, end: string];
}

/** How the calls of an answer are written. Text between them has no `begin`. */
export interface HeldCalls {
  /** The marker before a call, or before a list of calls. */
  readonly begin: string;
  /** The marker after it; '': none. */
  readonly end: string;
  /** A call is one of these. */
  readonly forms: readonly CallForm[];
  /** After a call, one of these markers follows, or the answer ends. Absent: any text. */
  readonly closers?: readonly string[];
  /** Other markers that text has none of. Default: none. */
  readonly others?: readonly string[];
  /** Around raw texts, in objects with bare names. Absent: the schemas are of JSON. */
  readonly marker?: string;
  /** Tags of `fields`. */
  readonly tags?: FieldTags;
  /** The brackets of a list of calls behind a marker; absent: one call. */
  readonly list?: { readonly open: string; readonly close: string };
  /**
   * Names of functions. Calls may also be the whole answer, without a marker, and behind a marker
   * several calls are joined by ";".
   */
  readonly bare?: readonly string[];
}

const inJson = (tools: readonly FunctionTool[], key?: string): CallForm => ({
  before: '',
  schema: callSchema(tools, key),
  after: '',
});

const argumentsOf = ({ function: { parameters } }: FunctionTool): object =>
  parameters ?? { type: 'object' };

/** <tool_call>{"name": "f", "arguments": {..}}</tool_call> */
export const hermesHeld = (tools: readonly FunctionTool[]): HeldCalls => ({
  begin: '<tool_call>',
  end: '</tool_call>',
  forms: [inJson(tools)],
});

/** {"name": "f", "parameters": {..}}; {..}, also behind <|python_tag|>. */
export const llamaHeld = (tools: readonly FunctionTool[]): HeldCalls => ({
  begin: '<|python_tag|>',
  end: '',
  forms: [inJson(tools, 'parameters')],
  bare: tools.map((tool) => tool.function.name),
});

/** [TOOL_CALLS]f[ARGS]{..} if the vocabulary has [ARGS]; else [TOOL_CALLS][{..}, {..}]. */
export const mistralHeld = (
  tools: readonly FunctionTool[],
  hasToken: (token: string) => boolean,
): HeldCalls => {
  const marked = { begin: '[TOOL_CALLS]', end: '' };
  if (!hasToken('[ARGS]')) {
    return { ...marked, forms: [inJson(tools)], list: { open: '[', close: ']' } };
  }
  const forms = tools.map((tool) => ({
    before: `${tool.function.name}[ARGS]`,
    schema: argumentsOf(tool),
    after: '',
  }));
  return { ...marked, forms };
};

/** functools[{..}, {..}]. Code may contain the word alone. */
export const phiHeld = (tools: readonly FunctionTool[]): HeldCalls => ({
  begin: 'functools[',
  end: '',
  forms: [inJson(tools)],
  list: { open: '', close: ']' },
});

const SEPARATOR = '<｜tool▁sep｜>';

/** Of V3 and R1: a type, a name and a code fence. Of V3.1: the name and bare JSON. */
export const deepseekHeld = (tools: readonly FunctionTool[]): HeldCalls => ({
  begin: '<｜tool▁call▁begin｜>',
  end: '<｜tool▁call▁end｜>',
  forms: tools.flatMap((tool) => {
    const { name } = tool.function;
    const schema = argumentsOf(tool);
    const fenced = `function${SEPARATOR}${name}\n\`\`\`json\n`;
    return [
      { before: fenced, schema, after: '\n```' },
      { before: `${name}${SEPARATOR}`, schema, after: '' },
    ];
  }),
});

/** What follows the recipient in a header, which stands before the channel or after it. */
const HEADER_ENDS = ['<|channel|>commentary', ''].flatMap((channel) =>
  ['', ' json', '<|constrain|>json', ' <|constrain|>json'].map((type) => channel + type),
);

/** <|channel|>commentary to=functions.f <|constrain|>json<|message|>{..}<|call|> */
export const harmonyHeld = (tools: readonly FunctionTool[]): HeldCalls => ({
  begin: 'to=functions.',
  end: '',
  closers: ['<|call|>', '<|end|>'],
  forms: tools.map((tool) => ({
    before: HEADER_ENDS.map((end) => `${tool.function.name}${end}<|message|>`),
    schema: argumentsOf(tool),
    after: '',
  })),
});

/** <|tool_call>call:f{key:<|"|>text<|"|>,list:[1,2]}<tool_call|>, and FunctionGemma's markers. */
export const gemmaHeld =
  ({ begin, end, quote }: Record<'begin' | 'end' | 'quote', string>) =>
  (tools: readonly FunctionTool[]): HeldCalls => ({
    begin,
    end,
    marker: quote,
    forms: tools.map((tool) => ({
      before: `call:${tool.function.name}`,
      after: '',
      schema: { type: 'object', ...argumentsOf(tool) },
    })),
  });

/** The arguments of a function as fields; null for any arguments. */
function fieldsOf({ function: { parameters } }: FunctionTool): CallField[] | null {
  if (!parameters) return null;
  const {
    properties = {},
    required: names = [],
    $defs,
    definitions,
  } = parameters as {
    [key: string]: unknown;
  };
  const needed: readonly unknown[] = Array.isArray(names) ? names : [];
  return Object.entries(isObject(properties) ? properties : {}).map(([name, schema]) => ({
    name,
    isText: isTextual(schema),
    isRequired: needed.includes(name),
    schema: {
      ...(isObject(schema) ? schema : {}),
      ...($defs !== undefined && { $defs }),
      ...(definitions !== undefined && { definitions }),
    },
  }));
}

/** <tool_call><function=f><parameter=k>value</parameter></function></tool_call>, in lines. */
export const qwenCoderHeld = (tools: readonly FunctionTool[]): HeldCalls => ({
  begin: '<tool_call>',
  end: '</tool_call>',
  others: ['<function='],
  tags: { key: ['<parameter=', '>'], value: ['\n', '\n</parameter>'] },
  forms: tools.map((tool) => ({
    before: `<function=${tool.function.name}>`,
    fields: fieldsOf(tool),
    after: '</function>',
  })),
});

/** <tool_call>f<arg_key>k</arg_key><arg_value>value</arg_value></tool_call>, also in lines. */
export const glmHeld = (tools: readonly FunctionTool[]): HeldCalls => ({
  begin: '<tool_call>',
  end: '</tool_call>',
  tags: { key: ['<arg_key>', '</arg_key>'], value: ['<arg_value>', '</arg_value>'] },
  forms: tools.map((tool) => ({
    before: tool.function.name,
    fields: fieldsOf(tool),
    after: '',
  })),
});
