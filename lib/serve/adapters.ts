// Adapters of a server: their names as models, and the routes that load and unload them.

import type { ServerResponse } from 'node:http';
import type { JsonObject } from '../../types/json.js';
import { DsError } from '../errors.js';
import type { Access } from './access.js';
import { ApiError, invalid, noModel, unsupported } from './api-error.js';
import { RequestFields } from './request-fields.js';
import { send } from './send.js';
import type { ServedModel } from './served-model.js';

/** Names of models that a client may request: the base first. */
export const namesOf = ({ name, engine: { adapters = [] } }: ServedModel): readonly string[] => [
  name,
  ...adapters.filter((adapter) => adapter !== name),
];

/**
 * Returns the adapter of a request by its `model`; null: the base. Throws 404 for another name.
 */
export function adapterOf(served: ServedModel, wanted: string | null | undefined): string | null {
  if (wanted === null || wanted === undefined || wanted === served.name) return null;
  if (served.engine.adapters?.includes(wanted)) return wanted;
  throw noModel(wanted, namesOf(served));
}

/** Entries of /v1/models: as in vLLM, `parent` of an adapter is its base. */
export function describeModels(
  served: ServedModel,
  created: number,
): ({ id: string } & JsonObject)[] {
  const { name: root, maxTokens: max_model_len } = served;
  return namesOf(served).map((id) => ({
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
interface Change {
  readonly access: Access;
  readonly served: ServedModel;
  readonly body: JsonObject;
  readonly response: ServerResponse;
}

const TEXT = { 'content-type': 'text/plain; charset=utf-8' };

/** POST /v1/load_lora_adapter, with the fields of vLLM. Throws 400, 403, 404. */
export async function loadAdapter({ access, served, body, response }: Change): Promise<void> {
  requireKeyed(access);
  const fields = new RequestFields(body);
  const name = requireField(fields, 'lora_name');
  const place = requireField(fields, 'lora_path');
  const isReplaced = fields.flag('load_inplace') ?? false;
  fields.any('base_model_name');
  fields.requireKnown();
  const { engine } = served;
  if (!engine.loadAdapter || !engine.unloadAdapter) throw without();
  if (name === served.name) throw invalid('lora_name', 'a name other than the model', `"${name}"`);
  const isThere = engine.adapters?.includes(name) ?? false;
  if (isThere && !isReplaced) {
    throw invalid('lora_name', 'a new name, or "load_inplace": true', `"${name}", which is loaded`);
  }
  if (isThere) engine.unloadAdapter(name);
  try {
    await engine.loadAdapter(name, place);
  } catch (error) {
    throw loadError(error);
  }
  send(response, 200, `Success: LoRA adapter '${name}' added successfully.`, TEXT);
}

/** POST /v1/unload_lora_adapter, with the fields of vLLM. Throws 400, 403, 404. */
export async function unloadAdapter({ access, served, body, response }: Change): Promise<void> {
  requireKeyed(access);
  const fields = new RequestFields(body);
  const name = requireField(fields, 'lora_name');
  fields.any('lora_int_id');
  fields.requireKnown();
  const { engine } = served;
  if (!engine.unloadAdapter) throw without();
  if (!engine.adapters?.includes(name)) throw noModel(name, namesOf(served).slice(1), 'lora_name');
  engine.unloadAdapter(name);
  send(response, 200, `Success: LoRA adapter '${name}' removed successfully.`, TEXT);
}

/** The paths in such requests are the server's own: only a holder of a key may name them. */
function requireKeyed(access: Access): void {
  if (!access.isOpen) return;
  const message =
    'Adapters are loaded and unloaded with a key only: set DS_API_KEY or --api-key-file.';
  throw new ApiError(403, message, { code: 'key_required' });
}

function requireField(fields: RequestFields, name: string): string {
  const value = fields.text(name);
  if (value) return value;
  throw invalid(name, 'a non-empty string', value === undefined ? 'nothing' : '""');
}

const without = (): ApiError =>
  unsupported('lora_name', 'the server has no room for adapters; start it with --max-loras');

/** A folder that is no adapter is 404, as in vLLM. */
function loadError(error: unknown): unknown {
  if (!(error instanceof DsError)) return error;
  const { code, message } = error;
  const isAbsent = code === 'DS_CHECKPOINT' && error.got === 'no such file';
  if (isAbsent) return new ApiError(404, message, { param: 'lora_path', code });
  const isGiven = ['DS_CHECKPOINT', 'DS_IO', 'DS_HUB', 'DS_NONFINITE'].includes(code);
  return isGiven ? new ApiError(400, message, { param: 'lora_path', code }) : error;
}
