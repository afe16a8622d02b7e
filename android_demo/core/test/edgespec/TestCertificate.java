package edgespec;

import java.io.ByteArrayInputStream;
import java.security.KeyStore;

/**
 * A certificate for the name "localhost", signed by itself, and its key, which is no secret: keytool
 * -genkeypair -keyalg EC -dname CN=localhost -ext san=dns:localhost -validity 36500 -storetype PKCS12.
 */
final class TestCertificate {
    static final char[] PASSWORD = "password".toCharArray();
    private static final String STORE = "MIID9gIBAzCCA6AGCSqGSIb3DQEHAaCCA5EEggONMIIDiTCCASAGCSqGSIb3DQEHAaCCAREEggENMIIBCTCC"
            + "AQUGCyqGSIb3DQEMCgECoIG9MIG6MGYGCSqGSIb3DQEFDTBZMDgGCSqGSIb3DQEFDDArBBSlW4OldnVtxnt6"
            + "87vwurZhbBwvDQICJxACASAwDAYIKoZIhvcNAgkFADAdBglghkgBZQMEASoEEMT7mxChYAUdC/OySR1tic8E"
            + "UPlt+A7qlpkUrzY3qtqjm8L8p4AKL/vIKwTDhDCKGAmSfJRANnR6F4pXpbJxjZ0Ubiw56WNg8+qhb4O3+syX"
            + "sB9002CBEmO+Wma1h5VzaibwMTYwEQYJKoZIhvcNAQkUMQQeAgB0MCEGCSqGSIb3DQEJFTEUBBJUaW1lIDE3"
            + "OTUyODk4ODIyMzYwggJhBgkqhkiG9w0BBwagggJSMIICTgIBADCCAkcGCSqGSIb3DQEHATBmBgkqhkiG9w0B"
            + "BQ0wWTA4BgkqhkiG9w0BBQwwKwQUm7EcLwnmItFzvx6K3Ys7xznSf+YCAicQAgEgMAwGCCqGSIb3DQIJBQAw"
            + "HQYJYIZIAWUDBAEqBBD/1N1AcYoMIkuR62gv1NTLgIIB0BDaTZUuCWZ4E7t66QJf+hxh3kthadKNqRGz1UQL"
            + "uGUpyyrqo4hPyux9hC8iF6f7ZJ1AO5cliMQK7vh+UotxPX/GFoucQ6VsuZ+2LYftuZNMaF19qDGjntylGzL0"
            + "ADcjLKZvIRaJAYx7a+9UKA75OyLBnI6VxYf78150gonVH5NCDv7LOFcQSc8lQt5V7ToWJkDnT03VfnU5Cw2V"
            + "DHhVFPUdAqEiTBd6tKdvBN4sSS9oLbiLeZLdbsCZK0v2mCj8k52wR4qU/VkoblFPwtfEU3ES1NZmwxx37+Jk"
            + "GpvTLcB/KUym8gS9vpiN7GP+KWBLeAUT0P0c1dh6+GJdcCkoRurIgUzQKvqVtinH7WSSjg3cMFq+2V7L7XUG"
            + "HkbzNnYQaAm8KgA2rS74mTMhV61U7XfXVQGj4XkwsbX+T8r/rPq0LOkID8WPsbvXNaybnnhs5UIi2QkpiUka"
            + "vqtaQP/2BxakGqKeFG3Z3CKRxgft0e9Sb7RFaeUqNuyzpMN9Ru1aicEPDssmIhufSxzADlRVyefbrvnLAPXg"
            + "jXbA03FW9FvcPvROjmyomOOr/V+0HPnPjpfov1ig+ZmprHICdWda/W+TGUXt998y+zPDGDf23F/yME0wMTAN"
            + "BglghkgBZQMEAgEFAAQgFrlq3oo8WbiNJ3aH67d4DqJpN/sKQpqAvvs/xEtSM3AEFKNj2hjR7vsQoTFaerK5"
            + "XhlnAXLXAgInEA==";

    private TestCertificate() {}

    static KeyStore store() throws Exception {
        KeyStore store = KeyStore.getInstance("PKCS12");
        store.load(new ByteArrayInputStream(java.util.Base64.getDecoder().decode(STORE)), PASSWORD);
        return store;
    }
}
