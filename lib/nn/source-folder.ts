// The folder that a model was read from. The files of its adapters name it.
const folders = new WeakMap<object, string>();

/** Records that `model` was read from `folder`, a path as the caller gave it. */
export function setSourceFolder(model: object, folder: string): void {
  folders.set(model, folder);
}

/** Returns the path of setSourceFolder(); null for a model that the program built. */
export const sourceFolderOf = (model: object): string | null => folders.get(model) ?? null;
