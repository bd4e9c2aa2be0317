// Errors of the hub: the answer of the server, and the fix.
import { DsError } from '../errors.js';
import type { HubSettings } from './environment.js';
import { printable } from './names.js';

/** A request of a model, for messages. */
export interface HubRequestInfo {
  readonly name: string;
  readonly revision: string;
}

/** The parts of a refusal that the hub sends. */
export interface Refusal {
  readonly status: number;
  /** X-Error-Code: "RepoNotFound", "GatedRepo", "RevisionNotFound", "EntryNotFound". */
  readonly code: string;
  /** X-Error-Message, or the "error" of the JSON body. */
  readonly text: string;
  /** The host that answered. */
  readonly host: string;
}

/** Errors of unreachable() and of a busy hub. */
const temporary = new WeakSet<DsError>();

/** Returns true for an error after which the caller may use its cached copy. */
export const isTemporary = (error: unknown): boolean =>
  error instanceof DsError && temporary.has(error);

/** Returns the error for an answer other than success. */
export function refusalError(
  { name, revision }: HubRequestInfo,
  settings: HubSettings,
  refusal: Refusal,
): DsError {
  const { status, code, host } = refusal;
  const answer = [`status ${status}`, code, refusal.text && printable(refusal.text)].filter(
    Boolean,
  );
  const got = `${answer.join(', ')} from ${host}`;
  const error = (expected: string, hint: string): DsError =>
    new DsError({ code: 'DS_HUB', op: name, expected, got, hint });
  if (code === 'GatedRepo' || (status === 403 && !code)) return gatedError(error, name, settings);
  if (code === 'RevisionNotFound') {
    return error(
      'an existing branch, tag or commit',
      `Revision ${printable(revision)} is unknown.`,
    );
  }
  if (code === 'EntryNotFound') {
    return error('the files of its own listing', 'Try again: the repository may have changed.');
  }
  if (code === 'RepoNotFound' || status === 404 || status === 401) {
    return missing(error, name, settings);
  }
  const busy =
    status === 429
      ? error('an answer within the rate limit', 'Wait some minutes, or set HF_TOKEN.')
      : error('an answer of the hub', 'Try again later, or check HF_ENDPOINT.');
  temporary.add(busy);
  return busy;
}

type Build = (expected: string, hint: string) => DsError;

function gatedError(error: Build, name: string, settings: HubSettings): DsError {
  const { endpoint, token } = settings;
  const then = token
    ? `The account of the token (${settings.tokenSource}) has no access yet.`
    : `Then set HF_TOKEN, or write the token to ${settings.tokenSource}.`;
  const hint = `Accept the conditions at ${endpoint}/${name}. ${then}`;
  return error('access to this gated model', hint);
}

function missing(error: Build, _name: string, settings: HubSettings): DsError {
  const { endpoint, token, tokenSource } = settings;
  const own = token
    ? `The token of ${tokenSource} may lack access to a private model.`
    : `A private model needs HF_TOKEN, or a token in ${tokenSource}.`;
  const expected = `a folder on this machine, or a model of ${endpoint}`;
  return error(expected, `Check the spelling. ${own}`);
}

/** Returns the error of a connection that failed or stalled. */
export function unreachable(name: string, settings: HubSettings, got: string): DsError {
  const error = new DsError({
    code: 'DS_HUB',
    op: name,
    expected: `an answer of ${settings.endpoint}`,
    got,
    hint: 'Check the network and HF_ENDPOINT. HF_HUB_OFFLINE=1 uses the cache without requests.',
  });
  temporary.add(error);
  return error;
}

/** Returns the error for an answer that breaks the rules of the interface. */
export function badAnswer(name: string, expected: string, got: string): DsError {
  const hint = 'The server or a proxy on the way is at fault. Check HF_ENDPOINT.';
  return new DsError({ code: 'DS_HUB', op: name, expected, got, hint });
}
