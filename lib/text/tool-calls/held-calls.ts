// The text of calls as grammars need it: markers, and JSON by the schemas of functions.
import { callSchema, type FunctionTool } from './call-schema.js';

/** A call: a text, JSON by a schema, a text. */
export interface CallForm {
  readonly before: string;
  readonly schema: object;
  readonly after: string;
}

/** How the calls of an answer are written. Text between them has no `begin`. */
export interface HeldCalls {
  /** The marker before a call, or before a list of calls. */
  readonly begin: string;
  /** The marker after it; '': none. */
  readonly end: string;
  /** A call is one of these. */
  readonly forms: readonly CallForm[];
  /** The brackets of a list of calls behind a marker; absent: one call. */
  readonly list?: { readonly open: string; readonly close: string };
  /**
   * Names of functions. Calls may also be the whole answer, without a marker, and behind a marker
   * several calls are joined by ";".
   */
  readonly bare?: readonly string[];
}

const inJson = (tools: readonly FunctionTool[], key?: string): CallForm => ({
  ...{ before: '', schema: callSchema(tools, key), after: '' },
});

const argumentsOf = ({ function: { parameters } }: FunctionTool): object =>
  parameters ?? { type: 'object' };

/** <tool_call>{"name": "f", "arguments": {..}}</tool_call> */
export const hermesHeld = (tools: readonly FunctionTool[]): HeldCalls => ({
  ...{ begin: '<tool_call>', end: '</tool_call>', forms: [inJson(tools)] },
});

/** {"name": "f", "parameters": {..}}; {..}, also behind <|python_tag|>. */
export const llamaHeld = (tools: readonly FunctionTool[]): HeldCalls => ({
  ...{ begin: '<|python_tag|>', end: '', forms: [inJson(tools, 'parameters')] },
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
    ...{ before: `${tool.function.name}[ARGS]`, schema: argumentsOf(tool), after: '' },
  }));
  return { ...marked, forms };
};

/** functools[{..}, {..}]. Code may contain the word alone. */
export const phiHeld = (tools: readonly FunctionTool[]): HeldCalls => ({
  ...{ begin: 'functools[', end: '', forms: [inJson(tools)], list: { open: '', close: ']' } },
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
