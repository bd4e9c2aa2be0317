// Adapters of a server: their names as models, and the routes that load and unload them.

import type { ServerResponse } from 'node:http';
import type { JsonObject } from '../../types/json.js';
import { DsError } from '../errors.js';
import { WITH_ADAPTERS } from '../inference/adapters/settings.js';
import type { Access } from './access.js';
import { ApiError, invalidError, noModelError, unsupportedError } from './api-error.js';
import { RequestFields } from './request-fields.js';
import { send } from './send.js';
import type { ServedModel } from './served-model.js';

/** Returns the model names that a client may request: the base first, then its adapters. */
const modelNames = ({ name, engine: { adapters = [] } }: ServedModel): readonly string[] => [
  name,
  ...adapters.filter((adapter) => adapter !== name),
];

/** Returns the adapter that `model` names, or null for the base. Throws 404 for an unknown name. */
export function findAdapter(served: ServedModel, model: string | null | undefined): string | null {
  if (model === null || model === undefined || model === served.name) return null;
  if (served.engine.adapters?.includes(model)) return model;
  throw noModelError(model, modelNames(served));
}

/** An entry of /v1/models; `created` is in seconds since 1970. */
export type ModelEntry = { id: string; created: number } & JsonObject;

/** Returns the entries of /v1/models. As in vLLM, `parent` of an adapter is its base. */
export function describeModels(served: ServedModel, created: number): ModelEntry[] {
  const { name: root, maxTokens: max_model_len } = served;
  return modelNames(served).map((id) => ({
    id,
    object: 'model',
    created,
    owned_by: 'ds',
    root,
    parent: id === root ? null : root,
    max_model_len,
  }));
}

/** A request to change adapters. */
interface AdapterChange {
  readonly access: Access;
  readonly served: ServedModel;
  readonly body: JsonObject;
  readonly response: ServerResponse;
}

const TEXT = { 'content-type': 'text/plain; charset=utf-8' };

/** Handles POST /v1/load_lora_adapter, with the fields of vLLM. Throws 400, 403, 404. */
export async function loadAdapter({
  access,
  served,
  body,
  response,
}: AdapterChange): Promise<void> {
  requireKeyedServer(access);
  const fields = new RequestFields(body);
  const name = requireField(fields, 'lora_name');
  const source = requireField(fields, 'lora_path');
  const isReplaced = fields.flag('load_inplace') ?? false;
  fields.any('base_model_name');
  fields.requireKnown();
  const { engine } = served;
  if (!engine.loadAdapter || !engine.unloadAdapter) throw noAdaptersError();
  if (name === served.name)
    throw invalidError('lora_name', 'a name other than the model', `"${name}"`);
  const isThere = engine.adapters?.includes(name) ?? false;
  if (isThere && !isReplaced) {
    throw invalidError(
      'lora_name',
      'a new name, or "load_inplace": true',
      `"${name}", which is loaded`,
    );
  }
  if (isThere) engine.unloadAdapter(name);
  try {
    await engine.loadAdapter(name, source);
  } catch (error) {
    throw loadError(error);
  }
  send(response, 200, `Success: LoRA adapter '${name}' added successfully.`, TEXT);
}

/** Handles POST /v1/unload_lora_adapter, with the fields of vLLM. Throws 400, 403, 404. */
export async function unloadAdapter({
  access,
  served,
  body,
  response,
}: AdapterChange): Promise<void> {
  requireKeyedServer(access);
  const fields = new RequestFields(body);
  const name = requireField(fields, 'lora_name');
  fields.any('lora_int_id');
  fields.requireKnown();
  const { engine } = served;
  if (!engine.unloadAdapter) throw noAdaptersError();
  if (!engine.adapters?.includes(name))
    throw noModelError(name, modelNames(served).slice(1), 'lora_name');
  engine.unloadAdapter(name);
  send(response, 200, `Success: LoRA adapter '${name}' removed successfully.`, TEXT);
}

/**
 * Throws 403 if the server has no keys: `lora_path` is a path of the server, so its clients must be
 * known.
 */
function requireKeyedServer(access: Access): void {
  if (!access.isOpen) return;
  const message =
    'Adapters are loaded and unloaded with a key only: set DS_API_KEY or --api-key-file.';
  throw new ApiError(403, message, { code: 'key_required' });
}

function requireField(fields: RequestFields, name: string): string {
  const value = fields.text(name);
  if (value) return value;
  throw invalidError(name, 'a non-empty string', value === undefined ? 'nothing' : '""');
}

const noAdaptersError = (): ApiError =>
  unsupportedError('lora_name', 'the server has no room for adapters; start it with --max-loras');

/**
 * Converts an error of loading: 404 if the folder has no adapter, as in vLLM, 400 for other bad
 * folders.
 */
function loadError(error: unknown): unknown {
  if (!(error instanceof DsError)) return error;
  if (error.expected === WITH_ADAPTERS) return noAdaptersError();
  const { code, message } = error;
  const isAbsent = code === 'DS_CHECKPOINT' && error.got === 'no such file';
  if (isAbsent) return new ApiError(404, message, { param: 'lora_path', code });
  const isRequestError = ['DS_CHECKPOINT', 'DS_IO', 'DS_HUB', 'DS_NONFINITE'].includes(code);
  return isRequestError ? new ApiError(400, message, { param: 'lora_path', code }) : error;
}
