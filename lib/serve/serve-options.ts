// Declares the options of a server.

import { valueError } from '../runtime/input-errors.js';
import {
  boolean,
  callback,
  declareOption,
  integer,
  type Options,
  oneOf,
  type Settings,
  string,
} from '../runtime/option.js';
import { REASONING_PARSERS, TOOL_PARSERS } from '../text/tool-calls/answer-forms.js';
import { REQUEST_LIMITS, readLimits, SERVER_LIMITS, type ServeLimits } from './limits.js';

/** Declarations of the options. */
export const SERVE = {
  /** Address to listen on. Default: "127.0.0.1", for this machine only. */
  host: string('address to listen on', {
    default: '127.0.0.1',
    shown: '127.0.0.1',
    flag: '--host <address>',
  }),
  /** Port to listen on; 0 selects a free one. Default: 8000. */
  port: declareOption(requirePort, 'port to listen on; 0 selects a free one', {
    default: 8000,
    flag: '--port <n>',
    syntax: 'integer',
  }),
  /** Clients send one of these keys. Default: clients need no key. */
  apiKeys: declareOption((_, keys: readonly string[]) => keys, 'keys that clients must send', {
    default: [],
  }),
  /**
   * More hosts that requests may name if the server has no key and listens on loopback; "*" for
   * any. Default: localhost, 127.0.0.0/8 and [::1] only.
   */
  allowedHosts: declareOption(
    (_, hosts: readonly string[]) => hosts,
    'more [host names](serving.md#keys-and-access) that requests to a local server without a key may use; `*`: all',
    { shown: 'none', flag: '--allowed-hosts <names>', syntax: 'names' },
  ),
  /** The origin of web pages that may send requests, or "*" for all origins. Default: no origin. */
  cors: declareOption(
    (_, origin: string) => origin,
    'web pages of this origin may send requests; `*`: all',
    { shown: 'none', flag: '--cors <origin>' },
  ),
  /** Name of the model in requests. Default: "default". */
  model: string('name of the model in requests', {
    default: 'default',
    shown: "the folder's name",
    flag: '--model-name <name>',
  }),
  /** A Jinja text in place of the tokenizer's own chat template. */
  chatTemplate: string("a Jinja text in place of the tokenizer's chat template"),
  /** Parser of tool calls. Default: "auto", by the chat template. */
  toolParser: oneOf(TOOL_PARSERS)('[format of tool calls](serving-programs.md#tools) in answers', {
    default: 'auto',
    shown: 'by the chat template',
    flag: '--tool-parser <name>',
  }),
  /** Parser of reasoning. Default: "auto", by the chat template. */
  reasoningParser: oneOf(REASONING_PARSERS)(
    '[markers of reasoning](serving-programs.md#reasoning) in answers',
    {
      default: 'auto',
      shown: 'by the chat template',
      flag: '--reasoning-parser <name>',
    },
  ),
  /** Serve a page to chat at `/`. Default: false. */
  ui: boolean('serve [a page to chat](chat.md#a-page-to-chat) at `/`', {
    default: false,
    shown: 'no page',
    flag: '--ui',
  }),
  /** Print a line of JSON for each request, without its texts. Default: false. */
  logRequests: boolean('print [a line of JSON](operating.md#logs) for each request', {
    default: false,
    shown: 'no log',
    flag: '--log-requests',
  }),
  /** Threads that turn prompts into tokens. Default: 2. */
  tokenizerThreads: integer(
    'threads that turn prompts into tokens; raise it for many long prompts',
    {
      min: 1,
      default: 2,
      flag: '--tokenizer-threads <n>',
    },
  ),
  /** Bounds of requests and connections. */
  limits: declareOption((op, limits: ServeLimits) => readLimits(op, limits), 'bounds of requests', {
    fields: { ...REQUEST_LIMITS, ...SERVER_LIMITS },
  }),
  /** Receives errors inside the server. Default: console.error. */
  report: callback<(failure: unknown) => void>('receives errors inside the server'),
};

/** Options of serve() and servePool(); SERVE declares them. */
export interface ServeOptions extends Options<typeof SERVE> {}

/** ServeOptions with defaults. */
export type ServeSettings = Settings<typeof SERVE>;

const MAX_PORT = 65_535;

function requirePort(op: string, port: number): number {
  if (Number.isInteger(port) && port >= 0 && port <= MAX_PORT) return port;
  throw valueError(op, `a port, 0 to ${MAX_PORT}`, port);
}
