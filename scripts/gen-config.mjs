// Generates the types, the editors' schema and the reference of each configuration; --check fails
// on drift.
import { configurations } from './gen-config/pages.mjs';
import { generatePublished } from './gen-config/published.mjs';
import { generateReference } from './gen-config/reference.mjs';
import { generateTypes } from './gen-config/types.mjs';
import { writeGenerated } from './generated-files.mjs';

writeGenerated(
  Object.fromEntries(
    configurations.flatMap((one) => [
      [one.files.types, generateTypes(one)],
      [one.files.published, generatePublished(one)],
      [one.files.reference, generateReference(one)],
    ]),
  ),
);
