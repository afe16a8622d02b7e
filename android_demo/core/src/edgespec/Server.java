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
    private static final String SUFFIX = ".vocabulary";

    private final Address address;
    private final String key;
    private final File folder;
    private final int timeoutMs;
    private ServerVocabulary vocabulary;

    /** @param folder the folder in which vocabularies are kept, or null */
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
    ServerVocabulary vocabulary() {
        return vocabulary;
    }

    /** Loads the vocabulary: from the folder if the server says that it has not changed. */
    void loadVocabulary(long connectTimeoutMs, StopFlag stop) throws IOException {
        final File cached = newestCached();
        byte[] data = new Attempt<byte[]>() {
            @Override
            byte[] run() throws IOException {
                HttpURLConnection http = open("/v1/vocabulary");
                if (cached != null) {
                    http.setRequestProperty("If-None-Match", etag(cached));
                }
                return exchange(http, null);
            }
        }.get(stop, connectTimeoutMs, address.toString());
        if (data == null) {
            useCached(cached);
        } else {
            vocabulary = new ServerVocabulary(data);
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
            byte[] run() throws IOException {
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
                WebSocket run() throws VerifierException {
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
    public String toString() {
        return address.toString();
    }

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

    /** Sends a request. Returns the body of the answer, null if the server says that nothing has changed. */
    private byte[] exchange(HttpURLConnection http, byte[] body) throws VerifierException {
        try {
            if (body != null) {
                http.setDoOutput(true);
                OutputStream out = http.getOutputStream();
                out.write(body);
                out.close();
            }
            int status = http.getResponseCode();
            if (status == HttpURLConnection.HTTP_NOT_MODIFIED) {
                return null;
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
                "no verification server answers at " + address + ": " + WebSocket.reason(error));
    }

    private static byte[] all(InputStream in) throws IOException {
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        byte[] buffer = new byte[1 << 14];
        try {
            for (int n = in.read(buffer); n >= 0; n = in.read(buffer)) {
                out.write(buffer, 0, n);
                if (out.size() > MAX_BODY) {
                    throw new ProtocolException("an answer has more than " + MAX_BODY + " bytes");
                }
            }
        } finally {
            in.close();
        }
        return out.toByteArray();
    }

    // The folder has one file for each vocabulary, named by its hash; the newest was used last

    private File newestCached() {
        File[] files = folder == null ? null : folder.listFiles();
        File newest = null;
        for (File file : files == null ? new File[0] : files) {
            boolean later = newest == null || file.lastModified() > newest.lastModified();
            if (file.getName().endsWith(SUFFIX) && later) {
                newest = file;
            }
        }
        return newest;
    }

    private static String etag(File cached) {
        String name = cached.getName();
        return "\"" + name.substring(0, name.length() - SUFFIX.length()) + "\"";
    }

    private void useCached(File cached) throws IOException {
        try {
            vocabulary = new ServerVocabulary(all(new FileInputStream(cached)));
            if (!etag(cached).equals("\"" + hex(vocabulary.hash()) + "\"")) {
                throw new ProtocolException("a kept vocabulary is not the one that its name says");
            }
        } catch (IOException error) {
            vocabulary = null;
            cached.delete(); // it is damaged: the next question fetches it anew
            throw new VerifierException.Unavailable("the vocabulary kept on this device was damaged ("
                    + WebSocket.reason(error) + "); ask again to fetch it");
        }
        cached.setLastModified(System.currentTimeMillis());
    }

    /**
     * Stores a vocabulary in a temporary file and renames it, so that a file is complete or does not
     * exist. If the disk is full, the vocabulary is fetched again next time.
     */
    private void store(byte[] data) {
        if (folder == null) {
            return;
        }
        File file = new File(folder, hex(vocabulary.hash()) + SUFFIX);
        File part = new File(folder, file.getName() + ".part");
        try {
            OutputStream out = new FileOutputStream(part);
            try {
                out.write(data);
            } finally {
                out.close();
            }
        } catch (IOException error) {
            part.delete();
            return;
        }
        if (!part.renameTo(file)) {
            part.delete();
        }
    }

    static String hex(byte[] bytes) {
        StringBuilder text = new StringBuilder();
        for (byte one : bytes) {
            text.append(Character.forDigit(one >> 4 & 15, 16)).append(Character.forDigit(one & 15, 16));
        }
        return text.toString();
    }
}
