// Creates the errors of the hub, with the server's answer and a hint.
import { existsSync } from 'node:fs';
import { DsError } from '../errors.js';
import type { HubSettings } from './environment.js';
import { toPrintable } from './names.js';

/** The requested model, for messages. */
export interface HubRequestInfo {
  readonly name: string;
  readonly revision: string;
}

/** A refusal by the hub. */
interface Refusal {
  readonly status: number;
  /** X-Error-Code: "RepoNotFound", "GatedRepo", "RevisionNotFound", "EntryNotFound". */
  readonly code: string;
  /** X-Error-Message, or the "error" of the JSON body. */
  readonly text: string;
  /** The host that answered. */
  readonly host: string;
}

/** The errors of an unreachable or busy hub: see isTemporary(). */
const temporaryErrors = new WeakSet<DsError>();

/** Returns whether the caller may use its cached copy after this error. */
export const isTemporary = (error: unknown): boolean =>
  error instanceof DsError && temporaryErrors.has(error);

/** Returns the error for an answer other than success. */
export function refusalError(
  { name, revision }: HubRequestInfo,
  settings: HubSettings,
  refusal: Refusal,
): DsError {
  const { status, code, host } = refusal;
  const answer = [`status ${status}`, code, refusal.text && toPrintable(refusal.text)].filter(
    Boolean,
  );
  const got = `${answer.join(', ')} from ${host}`;
  const error = (expected: string, hint: string): DsError =>
    new DsError({ code: 'DS_HUB', op: name, expected, got, hint });
  if (code === 'GatedRepo' || (status === 403 && !code)) return gatedError(error, name, settings);
  if (code === 'RevisionNotFound') {
    return error(
      'an existing branch, tag or commit',
      `Revision ${toPrintable(revision)} is unknown.`,
    );
  }
  if (code === 'EntryNotFound') {
    return error('the files of its own listing', 'Try again: the repository may have changed.');
  }
  if (code === 'RepoNotFound' || status === 404 || status === 401) {
    return missingModelError(error, name, settings);
  }
  const busy =
    status === 429
      ? error('an answer within the rate limit', 'Wait some minutes, or set HF_TOKEN.')
      : error('an answer of the hub', 'Try again later, or check HF_ENDPOINT.');
  temporaryErrors.add(busy);
  return busy;
}

type BuildError = (expected: string, hint: string) => DsError;

function gatedError(error: BuildError, name: string, settings: HubSettings): DsError {
  const { endpoint, token } = settings;
  const tokenHint = token
    ? `The account of the token (${settings.tokenSource}) has no access yet.`
    : `Then set HF_TOKEN, or write the token to ${settings.tokenSource}.`;
  const hint = `Accept the conditions at ${endpoint}/${name}. ${tokenHint}`;
  return error('access to this gated model', hint);
}

function missingModelError(error: BuildError, _name: string, settings: HubSettings): DsError {
  const { endpoint, token, tokenSource } = settings;
  const accessHint = token
    ? `The token of ${tokenSource} may lack access to a private model.`
    : `A private model needs HF_TOKEN, or a token in ${tokenSource}.`;
  const expected = `a folder on this machine, or a model of ${endpoint}`;
  return error(expected, `Check the spelling. ${accessHint}`);
}

/** Returns the error for a connection that failed or stalled. */
export function unreachableError(name: string, settings: HubSettings, got: string): DsError {
  const { endpoint } = settings;
  const isFolder = existsSync(name);
  const folderHint = isFolder ? '' : `If ${name} is a folder, check its path: it does not exist. `;
  const error = new DsError({
    code: 'DS_HUB',
    op: name,
    expected: isFolder ? `an answer of ${endpoint}` : `a folder, or an answer of ${endpoint}`,
    got,
    hint: `${folderHint}Check the network and HF_ENDPOINT. HF_HUB_OFFLINE=1 uses the cache without requests.`,
  });
  temporaryErrors.add(error);
  return error;
}

/** Returns the error for an answer that violates the hub's API. */
export function badAnswerError(name: string, expected: string, got: string): DsError {
  const hint = 'The server or a proxy on the way is at fault. Check HF_ENDPOINT.';
  return new DsError({ code: 'DS_HUB', op: name, expected, got, hint });
}
