# Target DS::node_api: the headers of Node-API, which cmake-js names.
if(NOT CMAKE_JS_INC MATCHES "node-addon-api")
  message(FATAL_ERROR "CMAKE_JS_INC: expected the folders of node-api-headers and node-addon-api, got "
    "\"${CMAKE_JS_INC}\". Build by npm run build:native, after npm ci.")
endif()

add_library(ds_node_api INTERFACE)
add_library(DS::node_api ALIAS ds_node_api)
target_include_directories(ds_node_api SYSTEM INTERFACE ${CMAKE_JS_INC})
target_compile_definitions(ds_node_api INTERFACE
  NAPI_VERSION=8
  NODE_ADDON_API_DISABLE_DEPRECATED
  NODE_ADDON_API_CPP_EXCEPTIONS_ALL
  NODE_API_SWALLOW_UNTHROWABLE_EXCEPTIONS)
target_link_libraries(ds_node_api INTERFACE ${CMAKE_JS_LIB})
