// Encryption of `vernier serve`.
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <memory>

#include "job_server.h"
#include "program.h"
#include "service/http/http_client.h"

namespace tls_test {

using namespace job_server;

namespace {

template <class Type, void (*destroy)(Type*)>
struct Destroy {
  void operator()(Type* object) const { destroy(object); }
};
using Key = std::unique_ptr<EVP_PKEY, Destroy<EVP_PKEY, ::EVP_PKEY_free>>;
using Certificate = std::unique_ptr<X509, Destroy<X509, ::X509_free>>;

// Writes cert.pem, which signs itself, and key.pem.
void make_certificate(const TemporaryFolder& folder) {
  const Key key(::EVP_EC_gen("P-256"));
  const Certificate certificate(::X509_new());
  ::X509_set_version(certificate.get(), 2);
  ::ASN1_INTEGER_set(::X509_get_serialNumber(certificate.get()), 1);
  ::X509_gmtime_adj(::X509_getm_notBefore(certificate.get()), -60);
  ::X509_gmtime_adj(::X509_getm_notAfter(certificate.get()), 3600);
  ::X509_set_pubkey(certificate.get(), key.get());
  auto* name = ::X509_get_subject_name(certificate.get());
  ::X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>("test"), -1, -1, 0);
  ::X509_set_issuer_name(certificate.get(), name);
  auto* names = ::X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, "IP:127.0.0.1");
  ::X509_add_ext(certificate.get(), names, -1);
  ::X509_EXTENSION_free(names);
  REQUIRE(::X509_sign(certificate.get(), key.get(), ::EVP_sha256()) > 0);
  auto* file = std::fopen((folder / "cert.pem").c_str(), "w");
  REQUIRE(::PEM_write_X509(file, certificate.get()) == 1);
  std::fclose(file);
  file = std::fopen((folder / "key.pem").c_str(), "w");
  REQUIRE(::PEM_write_PrivateKey(file, key.get(), nullptr, nullptr, 0, nullptr, nullptr) == 1);
  std::fclose(file);
  fs::permissions(folder / "key.pem", fs::perms::owner_read | fs::perms::owner_write);
}

struct Client {
  int status;
  std::string out;
};

Client list(const JobServer& server, const TemporaryFolder& folder, const std::vector<std::string>& more) {
  std::vector<std::string> words = {"jobs", "list", "--token-file", (server.path() / "tokens").string()};
  words.insert(words.end(), more.begin(), more.end());
  Program program(words, folder.path());
  const int status = program.wait();
  return {status, program.out() + program.err()};
}

}  // namespace

TEST_CASE("serve: with a certificate it is encrypted, whom the client does not trust it refuses") {
  const TemporaryFolder folder;
  make_certificate(folder);
  // Also at an address that other machines reach.
  for (const std::string listen : {"127.0.0.1:0", "0.0.0.0:0"}) {
    CAPTURE(listen);
    const JobServer server(
        {"--tls-certificate", folder / "cert.pem", "--tls-key", folder / "key.pem", "--listen", listen});
    const auto port = std::to_string(server.port);
    CHECK(read_text(server.path() / "server.url").starts_with("https://"));
    // Clients that begin no encryption keep nobody waiting.
    std::vector<std::unique_ptr<Connection>> silent;
    for (int i = 0; i < 20; ++i) silent.push_back(std::make_unique<Connection>(server.port));
    silent.front()->send("GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
    CHECK(silent.front()->read().find("HTTP") == std::string::npos);
    const auto url = "https://127.0.0.1:" + port;
    auto client = list(server, folder, {"--server", url, "--certificate", "cert.pem"});
    CHECK(client.status == 0);
    CHECK(client.out == "there are no jobs\n");
    // A page of the server has its scheme.
    auto place = vernier::place_of(url);
    place.certificate = folder / "cert.pem";
    vernier::HttpRequest request{.method = "GET", .target = "/v1/jobs"};
    for (const auto& [origin, status] : {std::pair(url, 200U), std::pair("http://127.0.0.1:" + port, 403U)}) {
      request.fields = {{"Authorization", "Bearer " + server.tokens.at("read")}, {"Origin", origin}};
      CHECK(vernier::ask_server(place, request, std::chrono::seconds(30)).status == status);
    }
    client = list(server, folder, {"--server", url});
    CHECK(client.status == 2);
    CHECK(client.out.find("certificate verify failed") != std::string::npos);
    client = list(server, folder, {"--server", "https://localhost:" + port, "--certificate", "cert.pem"});
    CHECK(client.status == 2);  // the certificate is of 127.0.0.1
    client = list(server, folder, {"--server", "http://127.0.0.1:" + port});
    CHECK(client.status == 2);
  }
}

TEST_CASE("serve: files of the encryption that are none are refused, and so is a key that others may read") {
  const TemporaryFolder folder;
  make_certificate(folder);
  const TemporaryFolder other;
  make_certificate(other);
  fs::copy_file(folder / "key.pem", folder / "open.pem");
  fs::permissions(folder / "open.pem", fs::perms::others_read, fs::perm_options::add);
  const std::string cert = folder / "cert.pem", key = folder / "key.pem";
  const struct {
    std::string options, text;
  } cases[] = {
      {"--tls-certificate " + cert, "go together"},
      {"--tls-key " + key, "go together"},
      {"--tls-certificate " + key + " --tls-key " + key, "is not a certificate that can be used"},
      {"--tls-certificate " + (folder / "none") + " --tls-key " + key, "is not a certificate that can be used"},
      {"--tls-certificate " + cert + " --tls-key " + (other / "key.pem"), "is not a key of that certificate"},
      {"--tls-certificate " + cert + " --tls-key " + (folder / "open.pem"), "everybody may read the key"},
      {"--tls-certificate " + cert + " --tls-key " + (folder / "none"), "No such file"}};
  for (const auto& [options, text] : cases) {
    const auto out = folder / "out";
    const auto command =
        "exec " VERNIER_BINARY_DIR "/vernier-serve " + (folder / "s") + " --listen 127.0.0.1:0 " + options;
    const int status = std::system((command + " 2>" + out).c_str());
    CAPTURE(options);
    CHECK(WEXITSTATUS(status) == 2);
    CHECK(read_text(out).find(text) != std::string::npos);
  }
}

}  // namespace tls_test
