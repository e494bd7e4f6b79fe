// The ids that llama.cpp gives texts, with control tokens in them taken as text: llama_ids VOCABULARY.gguf <TEXTS >IDS.
// Both streams are little-endian: each text as its length in bytes (uint32) and its UTF-8, each answer as its number of
// ids (uint32) and the ids (int32).
#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

#include "llama.h"

int main(int argc, char ** argv) {
    if (argc != 2) {
        std::cerr << "usage: llama_ids VOCABULARY.gguf\n";
        return 2;
    }
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    llama_model_params params = llama_model_default_params();
    params.vocab_only = true;
    llama_model * model = llama_model_load_from_file(argv[1], params);
    if (!model) {
        std::cerr << "llama.cpp cannot load " << argv[1] << "\n";
        return 1;
    }
    const llama_vocab * vocab = llama_model_get_vocab(model);
    uint32_t size;
    while (std::cin.read(reinterpret_cast<char *>(&size), sizeof size)) {
        std::string text(size, '\0');
        std::cin.read(text.data(), size);
        std::vector<llama_token> ids(size + 16);
        int32_t count = llama_tokenize(vocab, text.data(), int32_t(size), ids.data(), int32_t(ids.size()), false, false);
        if (count < 0) {
            std::cerr << "llama.cpp has more tokens than bytes\n";
            return 1;
        }
        std::cout.write(reinterpret_cast<char *>(&count), sizeof count);
        std::cout.write(reinterpret_cast<char *>(ids.data()), std::streamsize(count) * sizeof(llama_token));
    }
}
