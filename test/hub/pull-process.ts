// A process that pulls one model with small segments and prints its folder.
import { readHubSettings } from '../../lib/hub/environment.js';
import { pullWith } from '../../lib/hub/pull.js';

const settings = { ...readHubSettings(), segmentBytes: 200_000, backoffMs: 10 };
pullWith(settings, process.argv[2] as string, {}).then(
  (folder) => console.log(folder),
  (error) => {
    console.error(error);
    process.exitCode = 1;
  },
);
