// Entries of the metadata of a GGUF file.
import type { WrittenValue } from '../../checkpoint/index.js';

/** Values by the keys of an architecture, without its name. */
export type GgufEntries = Readonly<Record<string, WrittenValue>>;
