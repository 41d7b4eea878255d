// The files of a dashboard, as routes that need no token: they have no data.
#pragma once

#include <span>
#include <string>

#include "http_service.h"

namespace vernier {

struct PageFile {
  const char *path, *id, *type, *text;
};

// The file must live as long as the route.
inline HttpRoute page_route(const PageFile& file) {
  return {.path = file.path,
          .scope = Scope::open,
          .id = file.id,
          .summary = "A file of the dashboard, which has no data",
          .result_type = file.type,
          .answer = [&file](const HttpCall&) {
            return HttpResponse{.body = file.text, .content_type = std::string(file.type) + "; charset=utf-8"};
          }};
}

// The files of every service: /page.css and /parts.js, which dashboards share, and /api, the document as a page.
std::span<const PageFile> shared_page_files();

}  // namespace vernier
