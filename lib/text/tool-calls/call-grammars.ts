// Describes the text of calls for grammars: markers, and JSON that matches the schemas of
// functions.
import { isObject } from '../../runtime/is-object.js';
import { callSchema, type FunctionTool } from './call-schema.js';
import { isStringValue } from './value-types.js';

/** Form of one call: text, then JSON or fields, then text. */
interface CallForm {
  /** A list means one of these texts. */
  readonly before: string | readonly string[];
  /** Schema of the JSON; absent with `fields`. */
  readonly schema?: object;
  /** Arguments between tags, in this order; null: any arguments. */
  readonly fields?: readonly CallField[] | null;
  readonly after: string;
}

/** An argument between tags. */
export interface CallField {
  readonly name: string;
  readonly schema: object;
  /** Whether parsers take the value as text; else it is JSON. */
  readonly isText: boolean;
  readonly isRequired: boolean;
}

/** Tags around names and values of arguments. */
export interface FieldTags {
  readonly key: readonly [begin: string, end: string];
  readonly value: readonly [begin: string, end: string];
}

/** How the calls of an answer are written. Text between calls does not contain `begin`. */
export interface CallGrammar {
  /** Marker before a call, or before a list of calls. */
  readonly begin: string;
  /** Marker after it; '' for none. */
  readonly end: string;
  /** A call has one of these forms. */
  readonly forms: readonly CallForm[];
  /** After a call, one of these markers must follow, or the end of the answer. Absent: any text. */
  readonly closers?: readonly string[];
  /** Further markers that text must not contain. Default: none. */
  readonly others?: readonly string[];
  /** Marker around raw texts, in objects with unquoted names. Absent: the text is JSON. */
  readonly marker?: string;
  /** Tags of `fields`. */
  readonly tags?: FieldTags;
  /** Brackets of a list of calls after a marker; absent: one call. */
  readonly list?: { readonly open: string; readonly close: string };
  /**
   * Names of functions. If set, calls may also be the whole answer without a marker, and several
   * calls after a marker are joined by ";".
   */
  readonly bare?: readonly string[];
}

const jsonForm = (tools: readonly FunctionTool[], key?: string): CallForm => ({
  before: '',
  schema: callSchema(tools, key),
  after: '',
});

const argumentSchema = ({ function: { parameters } }: FunctionTool): object =>
  parameters ?? { type: 'object' };

/** <tool_call>{"name": "f", "arguments": {..}}</tool_call> */
export const hermesGrammar = (tools: readonly FunctionTool[]): CallGrammar => ({
  begin: '<tool_call>',
  end: '</tool_call>',
  forms: [jsonForm(tools)],
});

/** {"name": "f", "parameters": {..}}; {..}, also after <|python_tag|>. */
export const llamaGrammar = (tools: readonly FunctionTool[]): CallGrammar => ({
  begin: '<|python_tag|>',
  end: '',
  forms: [jsonForm(tools, 'parameters')],
  bare: tools.map((tool) => tool.function.name),
});

/** [TOOL_CALLS]f[ARGS]{..} if the vocabulary has [ARGS]; else [TOOL_CALLS][{..}, {..}]. */
export const mistralGrammar = (
  tools: readonly FunctionTool[],
  hasToken: (token: string) => boolean,
): CallGrammar => {
  const markers = { begin: '[TOOL_CALLS]', end: '' };
  if (!hasToken('[ARGS]')) {
    return { ...markers, forms: [jsonForm(tools)], list: { open: '[', close: ']' } };
  }
  const forms = tools.map((tool) => ({
    before: `${tool.function.name}[ARGS]`,
    schema: argumentSchema(tool),
    after: '',
  }));
  return { ...markers, forms };
};

/** functools[{..}, {..}]. Code may contain the word without the bracket. */
export const phiGrammar = (tools: readonly FunctionTool[]): CallGrammar => ({
  begin: 'functools[',
  end: '',
  forms: [jsonForm(tools)],
  list: { open: '', close: ']' },
});

const SEPARATOR = '<｜tool▁sep｜>';

/** V3 and R1: a type, a name and a code fence. V3.1: the name and bare JSON. */
export const deepseekGrammar = (tools: readonly FunctionTool[]): CallGrammar => ({
  begin: '<｜tool▁call▁begin｜>',
  end: '<｜tool▁call▁end｜>',
  forms: tools.flatMap((tool) => {
    const { name } = tool.function;
    const schema = argumentSchema(tool);
    const fenced = `function${SEPARATOR}${name}\n\`\`\`json\n`;
    return [
      { before: fenced, schema, after: '\n```' },
      { before: `${name}${SEPARATOR}`, schema, after: '' },
    ];
  }),
});

/** Text after the recipient in a header; the recipient may precede or follow the channel. */
const HEADER_ENDS = ['<|channel|>commentary', ''].flatMap((channel) =>
  ['', ' json', '<|constrain|>json', ' <|constrain|>json'].map((type) => channel + type),
);

/** <|channel|>commentary to=functions.f <|constrain|>json<|message|>{..}<|call|> */
export const harmonyGrammar = (tools: readonly FunctionTool[]): CallGrammar => ({
  begin: 'to=functions.',
  end: '',
  closers: ['<|call|>', '<|end|>'],
  forms: tools.map((tool) => ({
    before: HEADER_ENDS.map((end) => `${tool.function.name}${end}<|message|>`),
    schema: argumentSchema(tool),
    after: '',
  })),
});

/** <|tool_call>call:f{key:<|"|>text<|"|>,list:[1,2]}<tool_call|>, and FunctionGemma's markers. */
export const gemmaGrammar =
  ({ begin, end, quote }: Record<'begin' | 'end' | 'quote', string>) =>
  (tools: readonly FunctionTool[]): CallGrammar => ({
    begin,
    end,
    marker: quote,
    forms: tools.map((tool) => ({
      before: `call:${tool.function.name}`,
      after: '',
      schema: { type: 'object', ...argumentSchema(tool) },
    })),
  });

/** Returns the arguments of a function as fields; null for any arguments. */
function listFields({ function: { parameters } }: FunctionTool): CallField[] | null {
  if (!parameters) return null;
  const {
    properties = {},
    required: names = [],
    $defs,
    definitions,
  } = parameters as {
    [key: string]: unknown;
  };
  const requiredNames: readonly unknown[] = Array.isArray(names) ? names : [];
  return Object.entries(isObject(properties) ? properties : {}).map(([name, schema]) => ({
    name,
    isText: isStringValue(schema),
    isRequired: requiredNames.includes(name),
    schema: {
      ...(isObject(schema) ? schema : {}),
      ...($defs !== undefined && { $defs }),
      ...(definitions !== undefined && { definitions }),
    },
  }));
}

/**
 * <tool_call><function=f><parameter=k>value</parameter></function></tool_call>, on separate lines.
 */
export const qwenCoderGrammar = (tools: readonly FunctionTool[]): CallGrammar => ({
  begin: '<tool_call>',
  end: '</tool_call>',
  others: ['<function='],
  tags: { key: ['<parameter=', '>'], value: ['\n', '\n</parameter>'] },
  forms: tools.map((tool) => ({
    before: `<function=${tool.function.name}>`,
    fields: listFields(tool),
    after: '</function>',
  })),
});

/**
 * <tool_call>f<arg_key>k</arg_key><arg_value>value</arg_value></tool_call>, optionally on separate
 * lines.
 */
export const glmGrammar = (tools: readonly FunctionTool[]): CallGrammar => ({
  begin: '<tool_call>',
  end: '</tool_call>',
  tags: { key: ['<arg_key>', '</arg_key>'], value: ['<arg_value>', '</arg_value>'] },
  forms: tools.map((tool) => ({
    before: tool.function.name,
    fields: listFields(tool),
    after: '',
  })),
});
