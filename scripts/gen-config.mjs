// Generates the types, the editors' schema and the reference of ds_config.json; --check fails on
// drift.
import { generatePublished } from './gen-config/published.mjs';
import { generateReference } from './gen-config/reference.mjs';
import { generateTypes } from './gen-config/types.mjs';
import { writeGenerated } from './generated-files.mjs';

writeGenerated({
  'types/config.generated.d.ts': generateTypes(),
  'ds_config.schema.json': generatePublished(),
  'docs/configuration.md': generateReference(),
});
