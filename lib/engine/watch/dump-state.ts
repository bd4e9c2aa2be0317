// dump_state: prints the resolved configuration and the parts of the engine.
import { formatCount } from '../../profiler/index.js';
import { mebibytes } from '../../runtime/byte-text.js';
import type { Decisions, OwnedParts } from '../engine-parts.js';

type Described = Decisions & OwnedParts;

/** Keys with secret values. These are masked. */
const SECRET = /(api_?key|experiment_key|token|secret|password)$/i;

/**
 * Returns a section of text for each part, then the configuration as JSON with masked secrets.
 * There is no final newline.
 */
export function describeState(parts: Described): string {
  return [
    'engine state at initialization',
    ...describeModel(parts),
    ...describeOptimizer(parts),
    ...describeUnits(parts),
    'configuration (resolved)',
    JSON.stringify(parts.config, maskSecret, 2),
  ].join('\n');
}

function maskSecret(key: string, value: unknown): unknown {
  return SECRET.test(key) && typeof value === 'string' ? '***' : value;
}

function formatRow(name: string, value: string | number | boolean): string {
  return `  ${name.padEnd(22)}${value}`;
}

function describeModel({ module, device, batch, scaler, units, ranks }: Described): string[] {
  const trained = units.reduce((sum, { parameters }) => {
    return sum + parameters.reduce((all, { parameter }) => all + parameter.numel, 0);
  }, 0);
  const { train, microPerDevice, accumulationSteps } = batch;
  const { dataGroup, mesh } = ranks;
  const shared = dataGroup.size === 1 ? '1 rank' : `${dataGroup.size} ranks`;
  return [
    formatRow('model', module.constructor.name),
    formatRow(
      'parameters',
      `${formatCount(module.numParameters())}, ${formatCount(trained)} trained`,
    ),
    formatRow('device', `${device.name}, ${device.info.name}`),
    formatRow('mesh', String(mesh.shape)),
    formatRow('weights', units[0]?.dtype ?? 'none'),
    formatRow('gradient sums', units[0]?.gradient.dtype ?? 'none'),
    formatRow(
      'batch',
      `${train} = ${microPerDevice} x ${accumulationSteps} accumulation steps x ${shared}`,
    ),
    formatRow('loss scale', `${scaler.scale}, ${scaler.dynamic ? 'dynamic' : 'static'}`),
  ];
}

function describeOptimizer({ optimizer, schedules, state }: Described): string[] {
  const { device, host, disk } = state.bytes;
  const onDisk = disk > 0 ? `, ${mebibytes(disk)} on disk` : '';
  const memory = `${mebibytes(device)} on the device, ${mebibytes(host)} on the host${onDisk}`;
  return [
    formatRow('optimizer', optimizer.name),
    ...optimizer.groups.map(({ params, ...settings }, index) =>
      formatRow(`  group ${index}`, `${params.length} parameters, ${JSON.stringify(settings)}`),
    ),
    formatRow('schedule', schedules.name || 'none'),
    ...state.updateGroups.map(({ partitions, state: ownState, schedule }) =>
      formatRow(
        `state of ${partitions.length} units`,
        `${ownState.names}, ${schedule.constructor.name}`,
      ),
    ),
    formatRow('master and state', memory),
  ];
}

function describeUnits({ stage }: Described): string[] {
  const units = [...stage.partitions, ...stage.frozen].map(({ unit }) => unit);
  return [
    formatRow('units', units.length),
    ...units.map(({ name, parameters, layout, bytes }) => {
      const size = `${formatCount(layout.numel)} elements, weights ${mebibytes(bytes.weights)}`;
      return formatRow(`  ${name}`, `${parameters.length} parameters, ${size}`);
    }),
  ];
}
