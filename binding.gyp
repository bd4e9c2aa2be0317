# Lets node-gyp build the addon: one action that runs CMake, where the sources are listed.
{
  'targets': [{
    'target_name': 'ds_native',
    'type': 'none',
    'actions': [{
      'action_name': 'cmake',
      'inputs': ['CMakeLists.txt'],
      'outputs': ['<(PRODUCT_DIR)/ds_native.node'],
      'action': ['node', 'scripts/build-native.mjs'],
    }],
  }],
}
