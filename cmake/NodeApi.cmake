# Target DS::node_api: the Node-API headers, from cmake-js when it drives, else from node_modules.
set(DS_NODE_API_INCLUDES ${CMAKE_JS_INC})
if(NOT DS_NODE_API_INCLUDES)
  execute_process(
    COMMAND node -p
      "require('node-api-headers').include_dir + ';' + require('node-addon-api').include_dir"
    WORKING_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}"
    OUTPUT_VARIABLE DS_NODE_API_INCLUDES OUTPUT_STRIP_TRAILING_WHITESPACE
    ERROR_VARIABLE DS_NODE_API_ERROR RESULT_VARIABLE DS_NODE_API_STATUS)
  if(DS_NODE_API_STATUS)
    message(FATAL_ERROR "node-api-headers and node-addon-api were not found: run npm ci first.\n"
      "${DS_NODE_API_ERROR}")
  endif()
endif()

add_library(ds_node_api INTERFACE)
add_library(DS::node_api ALIAS ds_node_api)
target_include_directories(ds_node_api SYSTEM INTERFACE ${DS_NODE_API_INCLUDES})
target_compile_definitions(ds_node_api INTERFACE
  NAPI_VERSION=8
  NODE_ADDON_API_DISABLE_DEPRECATED
  NODE_ADDON_API_CPP_EXCEPTIONS_ALL
  NODE_API_SWALLOW_UNTHROWABLE_EXCEPTIONS)
target_link_libraries(ds_node_api INTERFACE ${CMAKE_JS_LIB})
