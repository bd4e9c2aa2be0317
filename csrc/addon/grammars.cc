// Grammar calls: copy arguments, then build grammars and fill masks on task threads.
#include "grammars.h"

#include <utility>

#include "file_tasks.h"
#include "task.h"

namespace ds::addon {
namespace {

/// An object made on a task thread. to_js() adds its handle on the JavaScript thread.
template <class T>
struct Made {
  Addon* addon;
  std::shared_ptr<T> object;
};

template <class T>
napi_value to_js(napi_env env, const Made<T>& made) {
  return ds::addon::to_js(env, table_of<T>(*made.addon).add(made.object));
}

/// Returns the UTF-8 text without an incomplete character at its end.
std::string whole_characters(std::string text) {
  size_t end = text.size();
  for (size_t back = 1; back <= 4 && back <= text.size(); ++back) {
    const auto lead = static_cast<uint8_t>(text[text.size() - back]);
    if ((lead & 0xc0) == 0x80) continue;
    const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 1;
    if (length > back) end = text.size() - back;
    break;
  }
  text.resize(end);
  return text;
}

}  // namespace

Promise<double> create_vocabulary(Addon& addon, Bytes bytes, Integers offsets) {
  const auto* begin = static_cast<const char*>(bytes.data);
  std::vector<char> text(begin, begin + bytes.size);
  std::vector<int32_t> starts(offsets.data, offsets.data + offsets.count);
  const auto promise = start_task(addon, [addon = &addon, text = std::move(text),
                                          starts = std::move(starts)] {
    return Made<VocabularyRef>{addon, std::make_shared<VocabularyRef>(
                                          text.data(), text.size(), starts.data(), starts.size())};
  });
  return {promise.value};
}

void release_vocabulary(Addon&, Handle<VocabularyRef> vocabulary) { vocabulary.take(); }

Promise<double> create_grammar(Addon& addon, Handle<VocabularyRef> vocabulary, Integers words) {
  std::vector<int32_t> copied(words.data, words.data + words.count);
  const auto promise = start_task(
      addon, [addon = &addon, vocabulary = vocabulary.share(), words = std::move(copied)] {
        return Made<GrammarRef>{
            addon, std::make_shared<GrammarRef>(vocabulary,
                                                grammar::read_rules(words.data(), words.size()))};
      });
  return {promise.value};
}

void release_grammar(Addon&, Handle<GrammarRef> grammar) { grammar.take(); }

double grammar_bytes(Addon&, Handle<GrammarRef> grammar) {
  return static_cast<double>(grammar->memory());
}

double create_matcher(Addon& addon, Handle<GrammarRef> grammar, Integers ends) {
  std::vector<int32_t> copied(ends.data, ends.data + ends.count);
  return addon.matchers.add(std::make_shared<MatcherRef>(grammar.share(), std::move(copied)));
}

void release_matcher(Addon&, Handle<MatcherRef> matcher) { matcher.take(); }

bool accept_token(Addon&, Handle<MatcherRef> matcher, TokenNumber token) {
  return matcher->accept(token);
}

void rollback_tokens(Addon&, Handle<MatcherRef> matcher, TokenCount count) {
  matcher->rollback(count);
}

bool matcher_complete(Addon&, Handle<MatcherRef> matcher) { return matcher->is_complete(); }

bool matcher_done(Addon&, Handle<MatcherRef> matcher) { return matcher->is_done(); }

std::string forced_text(Addon&, Handle<MatcherRef> matcher) {
  return whole_characters(matcher->forced());
}

void fill_mask(Addon&, Handle<MatcherRef> matcher, Bytes words) {
  const size_t bytes = matcher->grammar().vocabulary().words() * sizeof(uint32_t);
  const bool is_aligned = reinterpret_cast<uintptr_t>(words.data) % sizeof(uint32_t) == 0;
  if (words.size != bytes || !is_aligned) {
    refuse("DS_ARGUMENT", {"fillMask", "words"}, text(bytes, " aligned bytes"),
           text(words.size, is_aligned ? " bytes" : " bytes that are not aligned"));
  }
  matcher->fill(static_cast<uint32_t*>(words.data));
}

Promise<void> fill_masks(Addon& addon, Doubles places, Handle<Buffer> target) {
  constexpr Place kPlaces{"fillMasks", "places"};
  if (places.count % 2 != 0) {
    refuse("DS_ARGUMENT", kPlaces, "pairs [matcher, offset]", text(places.count, " numbers"));
  }
  std::vector<std::shared_ptr<MatcherRef>> matchers;
  std::vector<HostRange> ranges;
  for (size_t at = 0; at < places.count; at += 2) {
    const auto matcher = Handle<MatcherRef>::of(addon.matchers, places[at], kPlaces);
    const size_t bytes = matcher->grammar().vocabulary().words() * sizeof(uint32_t);
    const size_t offset = ByteCount::of(places[at + 1], kPlaces);
    if (offset % sizeof(uint32_t) != 0) {
      refuse("DS_ARGUMENT", kPlaces, "offsets of whole words", text(offset));
    }
    matchers.push_back(matcher.share());
    ranges.push_back(host_range(target, offset, bytes, {"fillMasks", "target"}));
  }
  return start_task(addon, [matchers = std::move(matchers), ranges = std::move(ranges)] {
    std::vector<uint32_t*> words;
    for (const HostRange& range : ranges) words.push_back(reinterpret_cast<uint32_t*>(range.data));
    grammar::fill_all(matchers, words);
  });
}

}  // namespace ds::addon
