// The zero namespace: what a user's program says to models whose parameters are spread over ranks.
export {
  registerExternalParameter,
  unregisterExternalParameter,
} from '../nn/external-parameters.js';
