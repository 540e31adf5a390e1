package wirehouse;

import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.security.MessageDigest;
import java.util.HexFormat;
import java.util.Iterator;
import javax.crypto.SecretKeyFactory;
import javax.crypto.spec.PBEKeySpec;
import javax.security.sasl.AuthenticationException;
import org.apache.hive.service.auth.PasswdAuthenticationProvider;

/**
 * Checks logins against a password file, which is read at each login. It has a line `name:rounds:salt:key` per user: the
 * key is PBKDF2 with HMAC-SHA-256 of the password; salt and key are in hex.
 */
public class PasswordFile implements PasswdAuthenticationProvider {
    /** The property that says where the file is. */
    public static final String PLACE = "wirehouse.passwords";
    private static final String UNKNOWN = "-:600000:00000000000000000000000000000000:"
        + "0000000000000000000000000000000000000000000000000000000000000000";

    @Override
    public void Authenticate(String userBytes, String passwordBytes) throws AuthenticationException {
        String user = userBytes == null ? null : text(userBytes);
        String password = passwordBytes == null ? null : text(passwordBytes);
        // Who is not known takes as long as who has another password.
        String line = UNKNOWN;
        try {
            Iterator lines = Files.readAllLines(Paths.get(System.getProperty(PLACE)), StandardCharsets.UTF_8).iterator();
            while (lines.hasNext()) {
                String next = (String) lines.next();
                if (user != null && next.startsWith(user + ":") && user.indexOf(':') < 0) {
                    line = next;
                }
            }
            if (password == null || password.isEmpty() || !matches(line.split(":"), password)) {
                throw new AuthenticationException("the name or the password is wrong");
            }
        } catch (AuthenticationException refused) {
            throw refused;
        } catch (Exception broken) {
            throw new AuthenticationException("the server can't read its passwords", broken);
        }
    }

    /** Hive hands over each byte as a character of its own. */
    private static String text(String bytes) {
        byte[] raw = new byte[bytes.length()];
        for (int i = 0; i < raw.length; i++) {
            raw[i] = (byte) bytes.charAt(i);
        }
        return new String(raw, StandardCharsets.UTF_8);
    }

    private static boolean matches(String[] fields, String password) throws Exception {
        byte[] salt = HexFormat.of().parseHex(fields[2]);
        byte[] key = HexFormat.of().parseHex(fields[3]);
        PBEKeySpec given = new PBEKeySpec(password.toCharArray(), salt, Integer.parseInt(fields[1]), key.length * 8);
        byte[] found = SecretKeyFactory.getInstance("PBKDF2WithHmacSHA256").generateSecret(given).getEncoded();
        return MessageDigest.isEqual(found, key);
    }
}
