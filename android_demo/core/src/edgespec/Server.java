package edgespec;

import java.io.ByteArrayOutputStream;
import java.io.File;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.HttpURLConnection;
import java.net.URL;
import java.nio.charset.StandardCharsets;
import java.util.List;
import javax.net.ssl.SSLSocketFactory;

/**
 * Talks to a verification server: over HTTP for its tokenizer with the model's chat template and for
 * its vocabulary, and by {@link #connect} over a WebSocket for verification.
 */
final class Server {
    /** Most bytes of an HTTP answer; a vocabulary of 300,000 tokens has about 3 MB. */
    private static final int MAX_BODY = 1 << 25;
    private static final String FILE = "vocabulary";

    private final Address address;
    private final String key;
    private final File folder;
    private final int timeoutMs;
    private ServerVocabulary vocabulary;

    /** @param folder the folder in which the last vocabulary is kept, or null */
    Server(String address, String key, File folder, int timeoutMs) throws VerifierException {
        this.address = Address.parse(address);
        this.key = key.trim();
        this.folder = folder;
        this.timeoutMs = timeoutMs;
        for (char c : this.key.toCharArray()) {
            if (c <= ' ' || c > '~') {
                throw new VerifierException.Refused(
                        "the key has a blank or a letter beyond ASCII in it; no server gives such keys");
            }
        }
    }

    /** The vocabulary that loadVocabulary has loaded; null before that. */
    ServerVocabulary vocabulary() { return vocabulary; }

    /** Loads the vocabulary: from the folder if the server says that it has not changed. */
    void loadVocabulary(long connectTimeoutMs, StopFlag stop) throws IOException {
        final ServerVocabulary kept = kept();
        byte[] data = new Attempt<byte[]>() {
            @Override
            public byte[] call() throws IOException {
                HttpURLConnection http = open("/v1/vocabulary");
                if (kept != null) {
                    http.setRequestProperty("If-None-Match", "\"" + hex(kept.hash()) + "\"");
                }
                return exchange(http, null);
            }
        }.get(stop, connectTimeoutMs, address.toString());
        vocabulary = data.length == 0 && kept != null ? kept : new ServerVocabulary(data);
        if (data.length > 0) {
            store(data);
        }
    }

    /**
     * Returns the token ids of a conversation in the server's chat template, up to where its answer
     * begins.
     *
     * @throws VerifierException.Refused if the server cannot tokenize it
     */
    int[] tokenize(List<Message> messages, StopFlag stop) throws IOException {
        final String asked = Json.tokenizeRequest(messages);
        byte[] data = new Attempt<byte[]>() {
            @Override
            public byte[] call() throws IOException {
                HttpURLConnection http = open("/tokenize");
                http.setRequestProperty("Content-Type", "application/json");
                return exchange(http, asked.getBytes(StandardCharsets.UTF_8));
            }
        }.get(stop, timeoutMs, address.toString());
        int[] tokens = Json.tokens(new String(data, StandardCharsets.UTF_8));
        for (int token : tokens) {
            if (token >= vocabulary.size()) {
                throw new ProtocolException(address + " has token " + token + " in a text, but only "
                        + vocabulary.size() + " in its vocabulary");
            }
        }
        if (tokens.length == 0) {
            throw new ProtocolException(address + " found no token in the conversation");
        }
        return tokens;
    }

    /** Opens a WebSocket for verification. */
    WebSocket connect(final int connectTimeoutMs, StopFlag stop) throws VerifierException {
        try {
            return new Attempt<WebSocket>() {
                @Override
                public WebSocket call() throws VerifierException {
                    SSLSocketFactory factory = (SSLSocketFactory) SSLSocketFactory.getDefault();
                    return WebSocket.connect(address, key, connectTimeoutMs, factory);
                }
            }.get(stop, connectTimeoutMs, address.toString());
        } catch (VerifierException error) {
            throw error;
        } catch (IOException error) {
            throw unreachable(error);
        }
    }

    /** Returns host:port, as messages name the server. */
    @Override
    public String toString() { return address.toString(); }

    private HttpURLConnection open(String route) throws IOException {
        HttpURLConnection http = (HttpURLConnection) new URL(address.http(route)).openConnection();
        http.setConnectTimeout(timeoutMs);
        http.setReadTimeout(timeoutMs);
        http.setUseCaches(false);
        http.setInstanceFollowRedirects(false); // send the key to this server only
        http.setRequestProperty("Connection", "close"); // a connection kept for minutes may be dead
        if (!key.isEmpty()) {
            http.setRequestProperty("Authorization", "Bearer " + key);
        }
        return http;
    }

    /** Sends a request. Returns the body of the answer, empty if nothing has changed. */
    private byte[] exchange(HttpURLConnection http, byte[] body) throws VerifierException {
        try {
            if (body != null) {
                http.setDoOutput(true);
                try (OutputStream out = http.getOutputStream()) {
                    out.write(body);
                }
            }
            int status = http.getResponseCode();
            if (status == HttpURLConnection.HTTP_NOT_MODIFIED) {
                return new byte[0];
            }
            if (status != HttpURLConnection.HTTP_OK) {
                throw refusal(http, status);
            }
            return all(http.getInputStream());
        } catch (VerifierException error) {
            throw error;
        } catch (IOException error) {
            throw unreachable(error);
        }
    }

    private VerifierException refusal(HttpURLConnection http, int status) throws IOException {
        InputStream body = http.getErrorStream();
        String said = body == null ? "" : Json.errorMessage(new String(all(body), StandardCharsets.UTF_8));
        boolean known = status == 401 || status == 403 || status == 429 || status >= 500;
        if (known || said.isEmpty()) {
            return WebSocket.httpError(address, String.valueOf(status));
        }
        return new VerifierException.Refused(address + ": " + said);
    }

    private VerifierException unreachable(IOException error) {
        return new VerifierException.Unavailable(
                "no verification server answers at " + address + ": " + VerifierException.reason(error));
    }

    private static byte[] all(InputStream from) throws IOException {
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        byte[] buffer = new byte[1 << 14];
        try (InputStream in = from) {
            for (int n = in.read(buffer); n >= 0; n = in.read(buffer)) {
                out.write(buffer, 0, n);
                if (out.size() > MAX_BODY) {
                    throw new ProtocolException("an answer has more than " + MAX_BODY + " bytes");
                }
            }
        }
        return out.toByteArray();
    }

    /** Returns the vocabulary that was used last; null if none is kept or its file is damaged. */
    private ServerVocabulary kept() {
        try {
            return folder == null ? null : new ServerVocabulary(all(new FileInputStream(new File(folder, FILE))));
        } catch (IOException error) {
            return null;
        }
    }

    /**
     * Stores a vocabulary in a temporary file and renames it, so that a file is complete or does not
     * exist. If the disk is full, the vocabulary is fetched again next time.
     */
    private void store(byte[] data) {
        if (folder == null) {
            return;
        }
        File part = new File(folder, FILE + ".part");
        try (OutputStream out = new FileOutputStream(part)) {
            out.write(data);
        } catch (IOException error) {
            part.delete();
            return;
        }
        part.renameTo(new File(folder, FILE));
    }

    static String hex(byte[] bytes) {
        StringBuilder text = new StringBuilder();
        for (byte one : bytes) {
            text.append(Character.forDigit(one >> 4 & 15, 16)).append(Character.forDigit(one & 15, 16));
        }
        return text.toString();
    }
}
