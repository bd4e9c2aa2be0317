// The folder that a model was read from, which the files of its adapters name.
const folders = new WeakMap<object, string>();

/** Notes that `model` was read from `folder`, a path as the caller gave it. */
export function noteSourceFolder(model: object, folder: string): void {
  folders.set(model, folder);
}

/** Returns that path; null for a model that was made in the program. */
export const sourceFolderOf = (model: object): string | null => folders.get(model) ?? null;
